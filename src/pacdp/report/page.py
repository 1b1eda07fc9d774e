"""One page that needs nothing but itself."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from pacdp import __version__
from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.experiments.run_folder import environment
from pacdp.report import summary
from pacdp.report.comparison import Arms, checked, terms_of
from pacdp.report.figures.base import Picture, Table
from pacdp.report.figures.clients import client_accuracy, client_epsilon, signal_to_noise
from pacdp.report.figures.comparison import accuracy_by_level, accuracy_over_rounds, final_by_method
from pacdp.report.figures.mechanism import curve_of, curve_picture, thresholds
from pacdp.report.figures.palette import LOOKS
from pacdp.report.figures.svg import svg
from pacdp.report.tables import clients_table, methods_table


@dataclass(frozen=True)
class Shown:
    """A picture as the template wants it."""

    key: str
    drawn: Markup
    title: str
    caption: str
    numbers: Table


@dataclass(frozen=True)
class Panel:
    """What is told of one arm alone."""

    key: str
    label: str
    seed: int
    warning: str
    pictures: Sequence[Shown]
    clients: Table
    plan: str


def page(
    title: str,
    arms: Arms,
    *,
    description: str = "",
    curve: Curve | None = None,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
    extra_figures: Sequence[Picture] = (),
    versions: Mapping[str, str] | None = None,
) -> str:
    """A comparison of arms, or one of them alone, as a whole HTML document.

    ``curve`` is by default the one that an arm was run with. ``extra_figures`` come after the
    comparison, each in its own place. ``versions`` are by default those at hand; the time is left
    out, so that the same outcomes give the same page.

    >>> from pacdp.experiments import RunResult, prepare, read_experiment
    >>> from pacdp.experiments.execute import execute
    >>> prepared = prepare(read_experiment("heart", profile="smoke"))
    >>> html = page("Heart", {"pac-dp": [RunResult.of(prepared, execute(prepared))]})
    >>> html.splitlines()[0], "://" in html
    ('<!doctype html>', False)
    """
    checked(arms)
    plan = next(iter(arms.values()))[0].plan
    said = terms_of(plan)
    found = curve or curve_of(arms)
    versions = environment() if versions is None else versions
    return _template().render(
        title=title,
        description=description,
        lead=summary.lead(arms),
        facts=summary.facts(arms),
        sentences=summary.sentences(arms),
        warnings=summary.warnings(arms),
        notes=notes,
        over_rounds=_shown("rounds", accuracy_over_rounds(arms)),
        by_method=_shown("final", final_by_method(arms)),
        methods=methods_table(arms),
        by_level=_shown("levels", accuracy_by_level(arms)),
        extra=[_shown(f"extra-{n}", one) for n, one in enumerate(extra_figures)],
        curve=_shown("curve", None if found is None else curve_picture(found, terms=said)),
        signal=_shown("signal", signal_to_noise(arms)),
        panels=[
            _panel(number, label, outcomes) for number, (label, outcomes) in enumerate(arms.items())
        ],
        commands=commands,
        versions={name: value for name, value in versions.items() if name != "time"},
        pacdp_version=__version__,
        **_assets(),
    )


def _panel(number: int, label: str, outcomes: Sequence[RunResult]) -> Panel:
    first = outcomes[0]
    pictures = {
        "thresholds": thresholds(outcomes),
        "epsilon": client_epsilon(first),
        "accuracy": client_accuracy(first),
    }
    shown = [_shown(f"arm-{number}-{key}", one) for key, one in pictures.items()]
    return Panel(
        key=f"arm-{number}",
        label=label,
        seed=first.plan.seed,
        warning=" ".join(summary.warnings({label: outcomes})),
        pictures=[one for one in shown if one is not None],
        clients=clients_table(first),
        plan=json.dumps(first.plan.model_dump(mode="json"), indent=2, ensure_ascii=False),
    )


def _shown(key: str, picture: Picture | None) -> Shown | None:
    if picture is None:
        return None
    drawn = Markup(svg(picture, prefix=key))  # its text is escaped, and nothing in it runs
    return Shown(key, drawn, picture.title, picture.caption, picture.numbers)


@cache
def _template() -> Template:
    # Names of clients and experiments are anybody's: all text is escaped.
    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return made.from_string(_read("page.html"))


@cache
def _assets() -> Mapping[str, str]:
    """The style, and the only script that the page lets run, by its hash."""
    script = _read("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    light, dark = (
        " ".join(f"--series-{n}: {getattr(look, name)};" for n, look in enumerate(LOOKS))
        for name in ("colour", "dark")
    )
    style = _read("style.css").replace("/* light series */", light)
    return {
        "style": Markup(style.replace("/* dark series */", dark)),
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
    }


def _read(name: str) -> str:
    return resources.files("pacdp.report").joinpath(name).read_text(encoding="utf-8")
