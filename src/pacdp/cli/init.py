"""``pacdp init``: write an experiment file to start from."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pacdp.errors import InputError


def init_command(
    path: Annotated[Path, Argument(metavar="FILE", help="Experiment file to write.")] = Path(
        "experiment.toml"
    ),
    data: Annotated[str, Option(help="Name of a data set, or your own data folder.")] = "heart",
) -> None:
    """Write a commented experiment file, and a JSON Schema for editors next to it."""
    from pacdp.experiments.template import SCHEMA, make_schema, render_template

    beside = path.with_name(SCHEMA)
    described = json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"
    if path.exists():
        raise InputError(f"{path}: exists already, and is not touched")
    if beside.exists() and beside.read_text() != described:
        raise InputError(f"{beside}: exists already and is another one, and is not touched")
    path.write_text(render_template(path.stem, data))
    beside.write_text(described)
    typer.echo(f"{path}: try it with: pacdp plan {path}")
