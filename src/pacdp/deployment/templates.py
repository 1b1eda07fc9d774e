"""The systemd units and container files of a federation, filled in from templates."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pacdp.deployment.layout import FederationSettings


def write_units(
    folder: Path, settings: FederationSettings, *, units: Sequence[str] | None = None
) -> None:
    """Write systemd units, all or the given ones, and the variables of each site's SuperNode."""
    bind = "127.0.0.1" if settings.host in ("127.0.0.1", "localhost") else "0.0.0.0"
    _write_templates("systemd", folder, PORT=str(settings.port), BIND=bind)
    for unit in folder.glob("*.service"):
        if units is not None and unit.stem not in units:
            unit.unlink()
    for name in settings.sites:
        variables = f'PACDP_SITE="{name}"\nPACDP_SUPERLINK={settings.host}:{settings.port}\n'
        (folder / f"{name}.env").write_text(variables, encoding="utf-8")


def write_container_files(folder: Path, settings: FederationSettings) -> None:
    """Write a container file for each role."""
    _write_templates("containers", folder, PORT=str(settings.port))


def _write_templates(kind: str, folder: Path, **values: str) -> None:
    folder.mkdir()
    for file in resources.files("pacdp.deployment").joinpath("files", kind).iterdir():
        text = file.read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        (folder / file.name).write_text(text, encoding="utf-8")
