"""The processes of a federation on one machine, and how each is started."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pacdp.deployment.layout import FederationFolder, FederationSettings

if TYPE_CHECKING:
    from pacdp.deployment.supervisor import Supervisor


@dataclass(frozen=True)
class Role:
    """A process that is restarted when it exits."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    pause: float = 1.0
    """Seconds before it is restarted."""
    folder: Path | None = None
    """The working directory; by default the current one, which may contain plug-ins."""
    fatal: frozenset[int] = frozenset()
    """Exit codes after which a restart would not help."""


# The exit code of pacdp's commands for invalid settings.
_REFUSED = 2


def list_pacdp_roles(folder: FederationFolder, settings: FederationSettings) -> list[Role]:
    """Return the roles of the sites and the coordinator."""
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    sites = [
        Role(
            f"site {name}",
            _pacdp_command("site", "serve", "--settings", str(folder.site_settings(name))),
            variables,
            fatal=frozenset({_REFUSED}),
        )
        for name in settings.sites
    ]
    coordinator = Role(
        "coordinator",
        _pacdp_command("federation", "serve", "--settings", str(folder.coordinator_settings)),
        variables,
        fatal=frozenset({_REFUSED}),
    )
    return [*sites, coordinator]


class DirectTransport:
    """A relay on this machine, without Flower."""

    def __init__(
        self, folder: FederationFolder, settings: FederationSettings, supervisor: "Supervisor"
    ) -> None:
        self._folder, self._settings, self._supervisor = folder, settings, supervisor

    def start(self) -> None:
        """Start the relay."""
        sites = [f"{name}={self._folder.site_socket(name)}" for name in self._settings.sites]
        program = [sys.executable, "-m", "pacdp.deployment.direct_relay"]
        arguments = [*program, str(self._folder.coordinator_socket), *sites]
        self._supervisor.start([Role("relay", arguments)])

    def maintain(self) -> None:
        """Do nothing: the supervisor restarts the relay if necessary."""


def _pacdp_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pacdp", *arguments]
