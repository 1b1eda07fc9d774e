"""The templates and the style sheet of self-contained HTML pages."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from pacdp.reporting.figures.palette import STYLES
from pacdp.reporting.figures.svg import render_svg


@cache
def load_template(name: str) -> Template:
    """Return a template that escapes all text, because client names are not trusted."""
    jinja = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # The text in a chart's SVG is escaped already, and nothing in it can run.
    jinja.globals["render_svg"] = lambda chart, key: Markup(render_svg(chart, prefix=key))
    return jinja.from_string(_read(name))


@cache
def load_style() -> Markup:
    """Return the style sheet of all pages."""
    light, dark = (
        " ".join(f"--series-{n}: {getattr(style, field)};" for n, style in enumerate(STYLES))
        for field in ("colour", "dark_colour")
    )
    style = _read("style.css").replace("/* light series */", light)
    return Markup(style.replace("/* dark series */", dark))


@cache
def load_script() -> Mapping[str, str]:
    """Return the only script that a page allows, and its hash."""
    script = _read("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": Markup(script), "script_hash": f"sha256-{digest}"}


def _read(name: str) -> str:
    return resources.files("pacdp.reporting").joinpath(name).read_text(encoding="utf-8")
