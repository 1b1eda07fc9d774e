"""The study of curves: F of each experiment beside the paper's, if it gives one."""

from collections.abc import Sequence
from functools import partial

from pacdp.curve import Curve
from pacdp.curve.paper import PUBLISHED_CURVES
from pacdp.experiments import read_experiment
from pacdp.formatting import MISSING, format_terms
from pacdp.paper.figures.studies import draw_curves
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Section, StepCounter, WorkItem, describe_experiment
from pacdp.paper.studies.study import Study

_CAPTION = """ε at {terms}. The grid is budgets x bounds x seeds; regret is the largest loss of F \
against the best bound of the grid at any budget, on fresh seeds."""


def split_curves(study: Study) -> list[WorkItem]:
    """List one item per curve."""
    return [WorkItem(f"curve of {name}", 1, partial(_fit, name)) for name in study.experiments]


def build_curves(study: Study, profile: str, results: Sequence[Curve]) -> Section:
    """Describe all curves."""
    fitted = dict(zip(study.experiments, results, strict=True))
    data = {name: describe_experiment(name, profile=profile) for name in fitted}
    lines = [{"experiment": data[name], **_line(name, curve)} for name, curve in fitted.items()]
    plan = results[0].evidence.plan
    caption = _CAPTION.format(terms=format_terms(plan["delta"], plan["adjacency"]))
    shown = table.format_records([line.items() for line in lines], words=2)
    figure = draw_curves(fitted, data=data)
    return Section(study, f"{caption}\n\n{shown}", table.format_csv(lines), figure)


def _fit(name: str, store: ArtifactStore, counter: StepCounter) -> Curve:
    with counter.step(f"curve of {name}"):
        return store.curve(read_experiment(name, profile=store.profile))


def _line(name: str, curve: Curve) -> dict[str, str]:
    evidence = curve.evidence
    bounds = [choice.bound for choice in evidence.choices]
    grid = map(len, (evidence.budgets, evidence.bounds, evidence.seeds))
    shown = ", ".join(f"{value:.3g}" for value in curve.coefficients)
    theirs = MISSING
    if name in PUBLISHED_CURVES:
        (a, b, c), r_squared = PUBLISHED_CURVES[name]
        theirs = f"{a:g}ε² + {b:g}ε + {c:g}, R² {r_squared:.3f}"
    return {
        "proxy": evidence.proxy.name,
        "grid": " x ".join(map(str, grid)),
        "smallest C*": f"{min(bounds):.3g}",
        "largest C*": f"{max(bounds):.3g}",
        "F": curve.family if curve.family == "piecewise" else f"{curve.family} [{shown}]",
        "R²": f"{evidence.families[curve.family].r_squared:.3f}",
        "regret, points": f"{100 * max(row.regret for row in evidence.regret):.1f}",
        "the paper's F": theirs,
    }
