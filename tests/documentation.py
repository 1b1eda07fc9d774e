"""Generates the tables of an experiment file's keys from the classes that validate them.

``python -m tests.documentation`` updates them in docs/your-own.md.
"""

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pacdp.config import Settings
from pacdp.curve import Curve
from pacdp.experiments.experiment import Experiment
from pacdp.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "your-own.md"
BEGIN, END = "<!-- keys -->", "<!-- /keys -->"
HEAD = "| key | allowed | default | meaning |\n|---|---|---|---|"
TYPE_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
COMPARISONS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def update_tables(page: str) -> str:
    """Return a page with the tables between its markers brought up to date."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{format_tables()}\n\n{END}{after}"


def format_tables() -> str:
    """Describe every section of an experiment file with its keys."""
    parts = _format_section("", Experiment)
    for name, settings in METHODS.items():
        # Tests and examples register further methods.
        if settings.__module__.startswith("pacdp.methods."):
            parts += _format_section(f"methods.{name}", settings)
    return "\n\n".join(parts)


def _format_section(path: str, settings: type[Settings]) -> list[str]:
    """Format the table of a section, followed by those of its subsections."""
    rows = []
    subsections: dict[type[Settings], list[str]] = {}
    for name, field in settings.model_fields.items():
        # docs/curve.md describes the content of a curve.
        nested = [section for section in _sections_in(field.annotation) if section is not Curve]
        for section in nested:
            subsections.setdefault(section, []).append(f"{path}.{name}" if path else name)
        meaning = field.description or next(map(_first_line, nested), "")
        cells = (f"`{name}`", _describe_allowed(field), _describe_default(field, nested), meaning)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    title = f"**`[{path}]`**" if path else "**At the top**"
    table = "\n".join([HEAD, *rows]) if rows else "It has no keys."
    parts = [f"{title}: {_first_line(settings)}", table]
    for section, paths in subsections.items():
        # A section that is allowed in several places is shown once.
        parts += _format_section("]`** and **`[".join(paths), section)
    return parts


def _first_line(settings: type[Settings]) -> str:
    return (settings.__doc__ or "").strip().splitlines()[0]


def _sections_in(annotation: Any) -> list[type[Settings]]:
    """Find the sections that a type allows."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections_in(part)]


def _describe_allowed(field: FieldInfo) -> str:
    forms = dict.fromkeys(_describe_type(field.annotation, field.metadata))
    return " or ".join(sorted(forms, key=lambda form: form.startswith("table")))


def _describe_type(annotation: Any, metadata: list[Any]) -> list[str]:
    """Name each kind of value that a type allows."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return [form for part in parts for form in _describe_type(part, metadata)]
    if origin is Annotated:
        more = [m for part in parts[1:] for m in getattr(part, "metadata", [part])]
        return _describe_type(parts[0], [*more, *metadata])
    if origin is Literal:
        return [", ".join(f"`{_to_toml(part)}`" for part in parts)]
    if origin is tuple:
        return [f"list of {_describe_type(parts[0], [])[0]}s"]
    if origin is dict:
        return ["table"]
    if annotation is NoneType:
        return []
    if annotation is Curve:
        return ["table", "path of a curve file"]
    if _sections_in(annotation):
        return ["table (below)"]
    if annotation not in TYPE_NAMES:
        return ["any value"]
    limits = [
        f"{sign} {_format_number(getattr(rule, name))}"
        for rule in metadata
        for name, sign in COMPARISONS.items()
        if getattr(rule, name, None) is not None
    ]
    return [" ".join([TYPE_NAMES[annotation], ", ".join(limits)]).strip()]


def _format_number(value: float) -> str:
    """Format a limit briefly: 2^63 or 1e6 rather than all its digits."""
    if value == 2**63:
        return "2^63"
    return f"{value:g}".replace("e+0", "e")


def _describe_default(field: FieldInfo, nested: list[type[Settings]]) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if nested == [type(value)] and not _describe_allowed(field).count(" or "):
        return "as below"
    return f"`{_to_toml(value)}`"


def _to_toml(value: Any) -> str:
    """Format a value as it is written in an experiment file."""
    if isinstance(value, Settings):
        values = {n: getattr(value, n) for n in type(value).model_fields}
        inside = ", ".join(f"{n} = {_to_toml(v)}" for n, v in values.items() if v is not None)
        return f"{{ {inside} }}"
    if isinstance(value, dict):
        return "{}" if not value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_to_toml, value))}]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    PAGE.write_text(update_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
