"""``pacdp report``: write a self-contained HTML report on finished runs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def report_command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, Option(help="HTML file to write; must not exist yet.")],
    title: Annotated[str | None, Option(help="Title of the report.")] = None,
) -> None:
    """Write an HTML report on finished runs of one experiment."""
    from pacdp import api

    command = ["pacdp", "report", *map(str, runs), "--out", str(out)]
    api.report(runs, out, title=title, command=command)
    typer.echo(f"report: {out}")
