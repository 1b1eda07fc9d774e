"""How results are printed: plain lines and tables for people, one JSON object for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def print_json(values: Mapping[str, Any]) -> None:
    """Print one object on one line. Infinity and NaN are not JSON and never printed."""
    typer.echo(json.dumps(values, allow_nan=False, ensure_ascii=False))


def print_rows(rows: Mapping[str, str]) -> None:
    """Print aligned "name  value" lines."""
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text_columns: int = 0,
    caption: str | None = None,
) -> None:
    """Print a table; the first ``text_columns`` columns hold text, the others numbers."""
    table = Table(title=title, caption=caption)
    for number, heading in enumerate(headings):
        if number < text_columns:
            table.add_column(heading, no_wrap=number == 0)
        else:
            table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
