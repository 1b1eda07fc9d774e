"""Writing a report to a file."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pacdp.curve import Curve
from pacdp.errors import DataError
from pacdp.experiments import RunResult
from pacdp.reporting.page import render_page
from pacdp.storage import write_atomically


def write_report(
    path: Path,
    results: Mapping[str, Sequence[RunResult]],
    *,
    command: Sequence[str] = (),
    folders: Sequence[Path] = (),
    curve: Curve | None = None,
    description: str | None = None,
    title: str | None = None,
) -> None:
    """Write the page of results, by method and one for each seed.

    By default the curve is the first one fitted by any of the runs in ``folders``; description and
    versions are those of the first folder. ``command`` is the command line that the page shows for
    reproduction.
    """
    settings, versions = (
        _read(folders[0] / name) if folders else {}
        for name in ("experiment.json", "environment.json")
    )
    labels = list(results)
    methods = labels[0] if len(labels) == 1 else f"{len(labels)} methods"
    html = render_page(
        title or f"{results[labels[0]][0].experiment}: {methods}",
        results,
        description=description or str(settings.get("description", "")),
        curve=curve or _load_curve(folders),
        commands=[shlex.join(command)] if command else [],
        versions=versions or None,
    )
    write_atomically(path, html)


def _load_curve(folders: Sequence[Path]) -> Curve | None:
    """Load the first curve that a run had to fit."""
    files = [folder / "curve.json" for folder in folders]
    return next((Curve.load(file) for file in files if file.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    """Read an optional JSON object; a file that is missing is empty."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: is damaged ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: is damaged (it holds no object)")
    return content
