"""How results are printed: plain lines for people, one JSON object for programs."""

import json
from collections.abc import Mapping
from typing import Any

import typer


def print_json(values: Mapping[str, Any]) -> None:
    """One object on one line. Infinity and NaN are not JSON and never printed."""
    typer.echo(json.dumps(values, allow_nan=False, ensure_ascii=False))


def print_rows(rows: Mapping[str, str]) -> None:
    """Aligned "name  value" lines."""
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
