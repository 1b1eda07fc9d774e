"""Methods against each other: every run of a study, its tables, its figure and its page."""

from functools import partial

from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.formatting import format_bytes, format_count
from pacdp.methods.pac_dp import PacDp
from pacdp.paper.figures.studies import contest_figure
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import Shelf
from pacdp.paper.studies.jobs import Cell, Job, cells, job
from pacdp.paper.studies.section import SMOKE, Observer, Part, Portion, data_of
from pacdp.paper.studies.study import Study, label
from pacdp.paper.studies.summary import Found, gather
from pacdp.reporting import Chart, Comparison, render_page
from pacdp.reporting.comparison import describe_terms
from pacdp.reporting.figures.comparison import plot_by_epsilon


def contest_portions(study: Study) -> list[Portion]:
    """Each run is one."""
    return [Portion(_words(study, cell), 1, partial(_run, study, cell)) for cell in cells(study)]


def contest(study: Study, shelf: Shelf, observe: Observer) -> Part:
    """Run what is missing, and tell what was found."""
    runs, curve = {}, None
    for cell in cells(study):
        work, runs[cell] = _run(study, cell, shelf, observe)
        if cell.reading == "certified" and isinstance(work.method, PacDp) and study.fit:
            curve = work.method.curve
    data = data_of(study.experiment, profile=shelf.profile)
    found = gather(study, runs, profile=shelf.profile, data=data)
    return Part(
        study, _text(found), table.csv_text(found), contest_figure(found), _page(found, curve)
    )


def _run(study: Study, cell: Cell, shelf: Shelf, observe: Observer) -> tuple[Job, RunResult]:
    observe(_words(study, cell), 0)
    work = job(study, cell, profile=shelf.profile, fit=shelf.curve)
    result = shelf.result(work)
    observe(_words(study, cell), 1)
    return work, result


def _words(study: Study, cell: Cell) -> str:
    return f"{study.name}: {label(cell.arm)}"


def _text(found: Found) -> str:
    first = found.rows[0].runs[0]
    plan, training = first.plan, first.plan.training
    batches = "whole" if training.batch == "full" else f"of {training.batch}"
    seeds = format_count(found.study.seeds, "seed")
    parts = [
        f"**Here:** {found.data}, {len(plan.clients)} clients, {plan.per_round} a round, "
        f"{format_count(plan.rounds, 'round')}, {plan.model.name} ({first.parameters:,} "
        f"parameters), {format_count(training.local_epochs or 1, 'local epoch')}, "
        f"batches {batches}, "
        f"{training.optimiser.name} at {training.optimiser.lr:g}; "
        f"{format_bytes(first.bytes_per_round * plan.rounds)} sent and received by all; {seeds}"
        f"{', mean ± standard deviation' if found.study.seeds > 1 else ''}. "
        f"ε at {describe_terms(plan)}; chance {100 * found.chance:.1f} %.",
        table.main_table(found),
    ]
    if found.row("pac-dp", "certified") is not None and found.study.seeds > 1:
        parts.append(table.gains_table(found))
    if found.sweep:
        parts += ["Accuracy in % by budget, certified:", table.sweep_table(found)]
    by_budget = table.by_budget_table(found)
    return "\n\n".join([*parts, by_budget] if by_budget else parts)


def _page(found: Found, curve: Curve | None) -> str:
    """All that is certified, and PAC-DP as published beside it."""
    study = found.study
    arms = {label(arm): runs for arm, runs in found.arms("certified").items()}
    published = found.arms("as-published")
    for arm in ["pac-dp"] if "pac-dp" in published else published:
        arms[f"{label(arm)}, as published"] = published[arm]
    notes = [SMOKE] if found.profile == "smoke" else []
    notes += [f"Trained on {found.data}.", f"The paper: {study.paper.where}. {study.paper.said}"]
    notes += [study.note] if study.note else []
    notes += [
        f"The paper reports {100 * value:.1f} % for {label(arm)}."
        for arm, value in study.paper.final.items()
    ]
    comparison = Comparison(arms)
    return render_page(
        study.title,
        comparison,
        curve=curve,
        commands=[f"pacdp reproduce {study.name} --profile {found.profile}"],
        notes=notes,
        extra_charts=[_plot_sweep(found, comparison)] if found.sweep else [],
    )


def _plot_sweep(found: Found, comparison: Comparison) -> Chart:
    series: dict[str, dict[float, list[float]]] = {}
    for row in found.sweep:
        assert row.epsilon is not None
        series.setdefault(label(row.arm), {})[row.epsilon] = row.accuracies
    return plot_by_epsilon(
        series,
        terms=comparison.terms,
        chance=found.chance,
        styles=comparison.styles,
        title="Final accuracy against ε, certified",
    )
