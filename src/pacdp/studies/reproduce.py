"""A study from beginning to end: run what is missing, then write its tables, figure and report."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from pacdp.curve import Curve
from pacdp.curve.paper import PAPER
from pacdp.experiments import read_experiment
from pacdp.report import page, write
from pacdp.report.arms import terms_of
from pacdp.report.figures import by_epsilon
from pacdp.report.palette import looks_of
from pacdp.studies import table
from pacdp.studies.cells import cells, job
from pacdp.studies.figures import contest_figure, curves_figure
from pacdp.studies.overhead import measure
from pacdp.studies.shelf import Shelf
from pacdp.studies.study import Study, experiment_of, label
from pacdp.studies.summary import Found, gather
from pacdp.words import NOTHING, size

# Told what is being done, and how many steps are over.
Observer = Callable[[str, int], None]


@dataclass(frozen=True, eq=False)
class Written:
    """A study's part of the results, before it is written."""

    study: Study
    text: str
    csv: str
    figure: Figure | None = None
    found: Found | None = None
    curves: Mapping[str, Curve] | None = None


def amount(study: Study) -> int:
    """How many steps a study takes, for who waits."""
    if study.kind == "contest":
        return len(cells(study))
    if study.kind == "curves":
        return len(study.experiments)
    return len(study.experiments) * (2 * study.seeds + 3)


def reproduce(study: Study, shelf: Shelf, *, observe: Observer = lambda words, steps: None) -> None:
    """Run what is missing of a study, and write its tables, its figure and its report."""
    kinds = {"contest": _contest, "curves": _curves, "overhead": _overhead}
    made = kinds[study.kind](study, shelf, observe)
    folder = shelf.folder / "results"
    (folder / f"{study.name}.csv").write_text(made.csv)
    if made.figure is not None:
        # Text stays text, and the same numbers give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
            made.figure.savefig(folder / f"{study.name}.svg", metadata={"Date": None})
        made.figure.savefig(folder / f"{study.name}.png", dpi=120)
    _report(made, shelf)
    # Last: where the text is, the rest is too.
    (folder / f"{study.name}.md").write_text(_section(made))


def _section(made: Written) -> str:
    study = made.study
    parts = [f"## {study.title}", f"`{study.name}`. The paper: {study.paper.where}."]
    parts += [study.note] if study.note else []
    parts.append(made.text)
    if made.figure is not None:
        parts.append(f"![{study.title}](results/{study.name}.svg)")
    parts.append(f"[Every run as CSV](results/{study.name}.csv)")
    return "\n\n".join(parts) + "\n"


def _contest(study: Study, shelf: Shelf, observe: Observer) -> Written:
    runs, curves = {}, {}
    for cell in cells(study):
        observe(f"{study.name}: {label(cell.arm)}", 0)
        work = job(study, cell, profile=shelf.profile, fit=shelf.curve)
        runs[cell] = shelf.outcome(work)
        observe(f"{study.name}: {label(cell.arm)}", 1)
        if cell.reading == "certified" and cell.arm == "pac-dp" and study.fit:
            curves["certified"] = work.method.model_dump()["curve"]
    base = read_experiment(study.experiment)
    sized = read_experiment(study.experiment, profile=shelf.profile)
    other = None
    if sized.data.name != base.data.name:
        other = f"{sized.data.name} stands for {base.data.name}"
    found = gather(study, runs, profile=shelf.profile, stands_for=other)
    return Written(
        study,
        _contest_text(found),
        table.csv_text(found),
        contest_figure(found),
        found,
        {name: Curve.model_validate(value) for name, value in curves.items()},
    )


def _contest_text(found: Found) -> str:
    first = found.rows[0].runs[0]
    plan = first.plan
    training = plan.training
    batches = "whole" if training.batch == "full" else f"of {training.batch}"
    how = (
        f"{len(first.result['clients'])} clients, {plan.per_round} a round, {plan.rounds} rounds, "
        f"{plan.model.name} ({first.result['parameters']:,} parameters), "
        f"{training.local_epochs} local epochs, batches {batches}, "
        f"{training.optimiser.name} at {training.optimiser.lr:g}, "
        f"{size(first.result['bytes_per_round'] * plan.rounds)} sent and received by all"
    )
    seeds = "one seed"
    if found.study.seeds > 1:
        seeds = f"{found.study.seeds} seeds, mean ± standard deviation"
    parts = [
        f"**Here:** {how}; {seeds}. "
        f"ε at δ = {plan.privacy.delta:g}, {plan.privacy.adjacency}; chance "
        f"{100 * found.chance:.1f} %.",
    ]
    if found.stands_for is not None:
        parts.append(f"**Not the paper's data:** {found.stands_for}.")
    parts.append(table.main_table(found))
    if found.row("pac-dp", "certified") is not None and found.study.seeds > 1:
        parts.append(table.gains_table(found))
    if found.sweep:
        parts += ["Accuracy in % by budget, certified:", table.sweep_table(found)]
    by_budget = table.by_budget_table(found)
    return "\n\n".join([*parts, by_budget] if by_budget else parts)


def _curves(study: Study, shelf: Shelf, observe: Observer) -> Written:
    curves = {}
    for name in study.experiments:
        observe(f"{study.name}: {name}", 0)
        curves[name] = shelf.curve(read_experiment(name, profile=shelf.profile))
        observe(f"{study.name}: {name}", 1)
    rows, lines = [], []
    for name, curve in curves.items():
        evidence = curve.evidence
        family = evidence["families"][curve.family]
        bounds = [choice["bound"] for choice in evidence["choices"]]
        worst = max(lost["regret"] for lost in evidence["regret"])
        theirs = PAPER.get(name)
        said = NOTHING
        if theirs is not None:
            (a, b, c), r_squared = theirs
            said = f"{a:g}ε² + {b:g}ε + {c:g}, R² {r_squared:.3f}"
        shown = ", ".join(f"{value:.3g}" for value in curve.coefficients)
        size = (len(evidence["budgets"]), len(evidence["bounds"]), len(evidence["seeds"]))
        line = {
            "experiment": name,
            "proxy": evidence["proxy"]["name"],
            "grid": " x ".join(map(str, size)),
            "least C*": f"{min(bounds):.3g}",
            "largest C*": f"{max(bounds):.3g}",
            "F": f"{curve.family} [{shown}]" if len(shown) < 60 else curve.family,
            "R²": f"{family['r_squared']:.3f}",
            "regret, points": f"{100 * worst:.1f}",
            "the paper's F": said,
        }
        rows.append(list(line.values()))
        lines.append(line)
    text = (
        "Budgets x bounds x seeds of the grid; regret: the most that F loses against the best "
        "bound of the grid at any budget, on fresh seeds.\n\n"
        + table.markdown(list(lines[0]), rows)
    )
    return Written(study, text, _csv(lines), curves_figure(curves), curves=curves)


def _overhead(study: Study, shelf: Shelf, observe: Observer) -> Written:
    path = shelf.folder / "overhead.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for name in study.experiments:
        words = f"{study.name}: {name}"
        if name in kept:
            observe(words, 2 * study.seeds + 3)
            continue
        observe(words, 0)
        experiment = experiment_of(name, study.changes, profile=shelf.profile)
        kept[name] = measure(experiment, turns=study.seeds, observe=partial(observe, words, 1))
        path.write_text(json.dumps(kept, indent=2) + "\n")
    found = [kept[name] for name in study.experiments]
    rows = [
        [
            one["experiment"],
            f"{one['offline_seconds']:.1f} for {one['trainings']} trainings",
            f"{one['pac_dp_seconds_a_round']:.3g}",
            f"{one['fixed_seconds_a_round']:.3g}",
            f"{one['ratio']:.2f} ({one['ratio_range'][0]:.2f} to {one['ratio_range'][1]:.2f})",
            f"{one['bytes_per_round']:,}",
        ]
        for one in found
    ]
    headings = ["experiment", "offline, s", "PAC-DP, s a round", "fixed C, s a round"]
    headings += ["ratio (over turns)", "bytes a round, both alike"]
    return Written(study, table.markdown(headings, rows), _csv(found))


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _report(made: Written, shelf: Shelf) -> None:
    """The page of a contest: all that is certified, and PAC-DP as published beside it."""
    found = made.found
    if found is None:
        return
    study = made.study
    arms = {label(arm): runs for arm, runs in found.arms("certified").items()}
    published = found.arms("as-published")
    for arm in ("pac-dp",) if arms else tuple(published):
        if arm in published:
            arms[f"{label(arm)}, as published"] = published[arm]
    extra = []
    if found.sweep:
        series: dict[str, dict[float, list[float]]] = {}
        for row in found.sweep:
            series.setdefault(label(row.arm), {})[row.epsilon or 0.0] = row.accuracies
        plan = found.rows[0].runs[0].plan
        looks = {name: look for name, look in looks_of(arms).items() if name in series}
        swept = by_epsilon(
            series,
            terms=terms_of(plan),
            chance=found.chance,
            looks=looks,
            title="Final accuracy against ε, certified",
        )
        extra.append(swept)
    notes = [f"The paper: {study.paper.where}."]
    notes += [study.note] if study.note else []
    notes += [found.stands_for] if found.stands_for else []
    notes += [
        f"The paper reports {100 * value:.1f} % for {label(arm)}."
        for arm, value in study.paper.final.items()
    ]
    html = page(
        study.title,
        arms,
        curve=(made.curves or {}).get("certified"),
        commands=[f"pacdp reproduce {study.name} --profile {shelf.profile}"],
        notes=notes,
        extra_figures=extra,
    )
    write(shelf.folder / "reports" / f"{study.name}.html", html)
