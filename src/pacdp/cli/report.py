"""``pacdp report``: finished runs as one page that needs nothing but itself."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pacdp.cli import options
from pacdp.errors import DataError
from pacdp.storage import write_whole

if TYPE_CHECKING:
    from pacdp.curve import Curve
    from pacdp.experiments import RunResult


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="A new HTML file.")],
    title: Annotated[str | None, typer.Option(help="What the page is called.")] = None,
) -> None:
    """Show finished runs of one experiment as a page: figures, guarantees, and every number."""
    from pacdp.experiments import RunResult
    from pacdp.report import arms_of, page

    options.new_file(out)
    arms = arms_of([RunResult.load(run) for run in runs])
    settings = _read(runs[0] / "experiment.json")
    html = page(
        title or title_of(next(iter(arms.values()))[0], list(arms)),
        arms,
        description=str(settings.get("description", "")),
        curve=_curve(runs),
        commands=[shlex.join(["pacdp", "report", *map(str, runs), "--out", str(out)])],
        versions=_read(runs[0] / "environment.json") or None,
    )
    write_whole(out, html)
    typer.echo(f"report: {out}")


def write_run_report(
    folder: Path, outcome: "RunResult", *, description: str, command: Sequence[str]
) -> Path:
    """The page of one run, in its folder."""
    from pacdp.report import arms_of, page

    arms = arms_of([outcome])
    html = page(
        title_of(outcome, list(arms)),
        arms,
        description=description,
        curve=_curve([folder]),
        commands=[shlex.join(command)],
        versions=_read(folder / "environment.json") or None,
    )
    write_whole(folder / "report.html", html)
    return folder / "report.html"


def write_comparison(
    path: Path,
    arms: Mapping[str, Sequence["RunResult"]],
    *,
    curve: "Curve | None",
    description: str,
    command: Sequence[str],
) -> None:
    """The page of methods over seeds."""
    from pacdp.report import page

    title = title_of(next(iter(arms.values()))[0], list(arms))
    html = page(title, arms, description=description, curve=curve, commands=[shlex.join(command)])
    write_whole(path, html)


def title_of(outcome: "RunResult", labels: Sequence[str]) -> str:
    """The experiment, and the method where there is one."""
    name = outcome.experiment
    return f"{name}: {labels[0]}" if len(labels) == 1 else f"{name}: {len(labels)} methods"


def _curve(runs: Sequence[Path]) -> "Curve | None":
    """The first curve that a run had to fit."""
    from pacdp.curve import Curve

    found = [run / "curve.json" for run in runs if (run / "curve.json").is_file()]
    return Curve.load(found[0]) if found else None


def _read(path: Path) -> dict[str, Any]:
    """What a file beside a run says; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: is damaged ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: is damaged (it holds no object)")
    return content
