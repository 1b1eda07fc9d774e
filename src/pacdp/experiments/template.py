"""The template of a new experiment, and the JSON Schema that editors check it with."""

import json
from importlib import resources
from string import Template
from typing import Any

from pacdp.experiments.experiment import Experiment

SCHEMA = "pacdp.schema.json"


def render_template(name: str, data: str) -> str:
    """Render a commented experiment to start from.

    >>> render_template("mine", "heart").splitlines()[0]
    '#:schema ./pacdp.schema.json'
    """
    text = resources.files("pacdp.experiments").joinpath("template.toml").read_text("utf-8")
    title, source = (json.dumps(value, ensure_ascii=False) for value in (name, data))
    return Template(text).substitute(schema=SCHEMA, name=name, title=title, source=source)


def make_schema() -> dict[str, Any]:
    """Make the JSON Schema of experiment files.

    >>> make_schema()["title"]
    'Experiment'
    """
    return Experiment.model_json_schema()
