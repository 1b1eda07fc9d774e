"""``pacdp report``: finished runs as one page that loads nothing from elsewhere."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="A new HTML file.")],
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Show finished runs of one experiment as a page: figures, guarantees, and every number."""
    from pacdp import api

    command = ["pacdp", "report", *map(str, runs), "--out", str(out)]
    api.report(runs, out, title=title, command=command)
    typer.echo(f"report: {out}")
