"""The keys of an experiment file as tables, read off the classes that check them.

``python -m tests.documentation`` writes them anew into docs/your-own.md.
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
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
LIMITS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def keys() -> str:
    """Every section of an experiment file with its keys."""
    parts = _section("", Experiment)
    for name, kind in METHODS.items():
        # Tests and examples add methods of their own.
        if kind.__module__.startswith("pacdp.methods."):
            parts += _section(f"methods.{name}", kind)
    return "\n\n".join(parts)


def written(page: str) -> str:
    """A page with the tables between its markers as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{keys()}\n\n{END}{after}"


def _section(path: str, kind: type[Settings]) -> list[str]:
    """A section's table, and those of the sections in it."""
    rows = []
    inner: dict[type[Settings], list[str]] = {}
    for name, field in kind.model_fields.items():
        # A curve says itself what is in it: docs/curve.md.
        below = [one for one in _inside(field.annotation) if one is not Curve]
        for one in below:
            inner.setdefault(one, []).append(f"{path}.{name}" if path else name)
        meaning = field.description or next(map(_first_line, below), "")
        cells = (f"`{name}`", _allowed(field), _default(field, below), meaning)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    title = f"**`[{path}]`**" if path else "**At the top**"
    table = "\n".join([HEAD, *rows]) if rows else "It has no keys."
    made = [f"{title}: {_first_line(kind)}", table]
    for one, places in inner.items():
        # What stands in several places is shown once.
        made += _section("]`** and **`[".join(places), one)
    return made


def _first_line(kind: type[Settings]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _inside(annotation: Any) -> list[type[Settings]]:
    """The sections that a value may be."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [one for part in get_args(annotation) for one in _inside(part)]


def _allowed(field: FieldInfo) -> str:
    forms = dict.fromkeys(_forms(field.annotation, field.metadata))
    return " or ".join(sorted(forms, key=lambda form: form.startswith("table")))


def _forms(annotation: Any, metadata: list[Any]) -> list[str]:
    """What a value may be, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return [form for part in parts for form in _forms(part, metadata)]
    if origin is Annotated:
        more = [m for part in parts[1:] for m in getattr(part, "metadata", [part])]
        return _forms(parts[0], [*more, *metadata])
    if origin is Literal:
        return [", ".join(f"`{_toml(part)}`" for part in parts)]
    if origin is tuple:
        return [f"list of {_forms(parts[0], [])[0]}s"]
    if origin is dict:
        return ["table"]
    if annotation is NoneType:
        return []
    if annotation is Curve:
        return ["table", "path of a curve file"]
    if _inside(annotation):
        return ["table (below)"]
    if annotation not in WORDS:
        return ["any value"]
    limits = [
        f"{sign} {_limit(getattr(rule, name))}"
        for rule in metadata
        for name, sign in LIMITS.items()
        if getattr(rule, name, None) is not None
    ]
    return [" ".join([WORDS[annotation], ", ".join(limits)]).strip()]


def _limit(value: float) -> str:
    """A limit as it is written: 2^63 or 1e6 rather than all its digits."""
    if value == 2**63:
        return "2^63"
    return f"{value:g}".replace("e+0", "e")


def _default(field: FieldInfo, below: list[type[Settings]]) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if below == [type(value)] and not _allowed(field).count(" or "):
        return "as below"
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    """A value as an experiment file has it."""
    if isinstance(value, Settings):
        given = {n: getattr(value, n) for n in type(value).model_fields}
        inside = ", ".join(f"{n} = {_toml(v)}" for n, v in given.items() if v is not None)
        return f"{{ {inside} }}"
    if isinstance(value, dict):
        return "{}" if not value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
