"""The layout and the settings of a federation's folder."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from pacdp.config import Count, Real, Settings, Whole
from pacdp.errors import InputError

# The kernel's limit for the path of a Unix socket, without the final zero.
LARGEST_SOCKET_PATH = 107
_NAME = re.compile(r"[^\x00-\x1f\x7f/\\\"',=.\-][^\x00-\x1f\x7f/\\\"',=]*")


class FederationSettings(Settings):
    """``federation.toml``: the options with which the federation was created."""

    experiment: str = Field(description="Name or path of the experiment.")
    run: str = Field(description="The run's name in the plan and the ledgers.")
    sites: tuple[str, ...] = Field(min_length=1, description="The clients, in the plan's order.")
    seed: Whole = Field(0, description="The plan's seed.")
    host: str = Field("127.0.0.1", description="Name or address at which nodes reach SuperLink.")
    port: Whole = Field(
        9092, ge=1, le=65535, description="Port of SuperLink; SuperNodes use the following ones."
    )
    deadline: Real = Field(300.0, gt=0, description="Seconds that the sites have for a round.")
    minimum: Count = Field(1, description="Replies that a round needs.")


@dataclass(frozen=True)
class FederationFolder:
    """The paths below a federation's folder."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "federation.toml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def coordinator(self) -> Path:
        return self.path / "coordinator"

    @property
    def coordinator_settings(self) -> Path:
        return self.coordinator / "coordinator.toml"

    @property
    def coordinator_socket(self) -> Path:
        return self.coordinator / "coordinator.sock"

    @property
    def flower(self) -> Path:
        return self.path / "flower"

    @property
    def authority(self) -> Path:
        return self.flower / "superlink" / "ca.crt"

    def node(self, name: str) -> Path:
        """Return the folder of a site's SuperNode."""
        return self.flower / "nodes" / name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def processes(self) -> Path:
        return self.path / "processes.json"

    def site(self, name: str) -> Path:
        """Return the folder of a site."""
        return self.path / "sites" / name

    def site_settings(self, name: str) -> Path:
        """Return the settings of a site."""
        return self.site(name) / "site.toml"

    def site_socket(self, name: str) -> Path:
        """Return the socket of a site."""
        return self.site(name) / "site.sock"

    def load_settings(self) -> FederationSettings:
        """Read ``federation.toml``; raise InputError if it is missing or invalid."""
        if not self.settings_file.is_file():
            raise InputError(
                f"{self.path}: is not the folder of a federation; pacdp federation init creates one"
            )
        return FederationSettings.load_toml(self.settings_file)


def require_site_names(names: Sequence[str]) -> None:
    """Refuse names that are not valid as folder names or in the transport's settings.

    >>> require_site_names(["north", "client 0"])
    >>> require_site_names(["../north"])
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: client '../north': cannot be the name of a folder; must have no comma,
    quote, slash or equals sign, must not start with a dot or dash, and have at most 64 bytes
    """
    for name in names:
        if not _NAME.fullmatch(name) or name.strip() != name or len(os.fsencode(name)) > 64:
            raise InputError(
                f"client {name!r}: cannot be the name of a folder; must have no comma, quote, "
                "slash or equals sign, must not start with a dot or dash, and have at most 64 bytes"
            )


def require_short_paths(folder: FederationFolder, names: Sequence[str]) -> None:
    """Refuse a folder in which the paths of sockets would exceed the kernel's limit."""
    sockets = [folder.coordinator_socket, *map(folder.site_socket, names)]
    longest = max(len(os.fsencode(path)) for path in sockets)
    if longest > LARGEST_SOCKET_PATH:
        raise InputError(
            f"{folder.path}: is {longest - LARGEST_SOCKET_PATH} bytes too long for the sockets in "
            f"it, whose paths may have {LARGEST_SOCKET_PATH} bytes; choose a shorter path"
        )


def format_toml(values: Mapping[str, Any], *, comments: Sequence[str] = ()) -> str:
    """Format settings as TOML; mappings become tables at the end.

    >>> print(format_toml({"minimum": 2, "sites": {"client 0": "ab"}, "initial": None}))
    minimum = 2
    <BLANKLINE>
    [sites]
    "client 0" = "ab"
    <BLANKLINE>
    """
    lines, tables = [f"# {comment}" for comment in comments], []
    for name, value in values.items():
        if isinstance(value, Mapping):
            if not value:
                continue
            tables += [
                "",
                f"[{name}]",
                *(f"{_quote(key)} = {_quote(v)}" for key, v in value.items()),
            ]
        elif value is not None:
            lines.append(f"{name} = {_quote(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _quote(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists are also valid TOML.
    return json.dumps(value, ensure_ascii=False)
