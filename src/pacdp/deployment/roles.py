"""The processes of a federation on one machine, and how each is started."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pacdp.deployment.layout import FederationFolder, FederationSettings


@dataclass(frozen=True)
class Role:
    """A process that is started again if it ends."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    pause: float = 1.0
    """Seconds before it is started again."""
    fatal: frozenset[int] = frozenset()
    """Exit codes after which starting it again would not help."""


# The commands of pacdp end with this code if their settings are refused.
_REFUSED = 2


def pacdp_roles(folder: FederationFolder, settings: FederationSettings) -> list[Role]:
    """Return the sites and the coordinator."""
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    sites = [
        Role(
            f"site {name}",
            _pacdp("site", "serve", "--settings", str(folder.site_settings(name))),
            variables,
            fatal=frozenset({_REFUSED}),
        )
        for name in settings.sites
    ]
    coordinator = Role(
        "coordinator",
        _pacdp("federation", "serve", "--settings", str(folder.coordinator_settings)),
        variables,
        fatal=frozenset({_REFUSED}),
    )
    return [*sites, coordinator]


def direct_roles(folder: FederationFolder, settings: FederationSettings) -> list[Role]:
    """Return the relay of a trial without Flower."""
    sites = [f"{name}={folder.site_socket(name)}" for name in settings.sites]
    relay = "pacdp.deployment.direct_relay"
    return [
        Role("relay", [sys.executable, "-m", relay, str(folder.coordinator_socket), *sites])
    ]


def _pacdp(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pacdp", *arguments]
