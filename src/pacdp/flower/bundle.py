"""Writing the app that Flower runs: the relays of the coordinator and the sites."""

from importlib.resources import as_file, files
from pathlib import Path

from pacdp.errors import InputError

_FILES = (
    "pyproject.toml",
    "pacdp_relay/__init__.py",
    "pacdp_relay/relay.py",
    "pacdp_relay/client_app.py",
    "pacdp_relay/server_app.py",
)


def write_app(folder: Path) -> None:
    """Write the app to a new folder, from which ``flwr run`` sends it to the nodes.

    Everything in that folder is sent to every node, so never store anything else there.
    """
    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another path, or remove it")
    with as_file(files("pacdp.flower") / "app") as source:
        for name in _FILES:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((source / name).read_bytes())
