"""Methods against each other: every run of a study, its tables, its figure and its page."""

from functools import partial

from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.formatting import format_bytes, format_count
from pacdp.methods.pac_dp import PacDp
from pacdp.paper.figures.studies import draw_comparison
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job, StudyRun, build_job, list_runs
from pacdp.paper.studies.section import SMOKE_NOTE, Observer, Section, WorkItem, describe_data
from pacdp.paper.studies.study import Study, label_arm
from pacdp.paper.studies.summary import StudyResult, collect_results
from pacdp.reporting import Chart, Comparison, render_page
from pacdp.reporting.comparison import describe_terms
from pacdp.reporting.figures.comparison import plot_by_epsilon


def split_comparison(study: Study) -> list[WorkItem]:
    """Each run is one."""
    return [
        WorkItem(_words(study, cell), 1, partial(_run, study, cell)) for cell in list_runs(study)
    ]


def build_comparison(study: Study, store: ArtifactStore, observe: Observer) -> Section:
    """Run what is missing, and tell what was found."""
    runs, curve = {}, None
    for cell in list_runs(study):
        work, runs[cell] = _run(study, cell, store, observe)
        if cell.reading == "certified" and isinstance(work.method, PacDp) and study.fit:
            curve = work.method.curve
    data = describe_data(study.experiment, profile=store.profile)
    found = collect_results(study, runs, profile=store.profile, data=data)
    return Section(
        study,
        _text(found),
        table.format_runs_csv(found),
        draw_comparison(found),
        _page(found, curve),
    )


def _run(
    study: Study, cell: StudyRun, store: ArtifactStore, observe: Observer
) -> tuple[Job, RunResult]:
    observe(_words(study, cell), 0)
    work = build_job(study, cell, profile=store.profile, fit=store.curve)
    result = store.result(work)
    observe(_words(study, cell), 1)
    return work, result


def _words(study: Study, cell: StudyRun) -> str:
    return f"{study.name}: {label_arm(cell.arm)}"


def _text(found: StudyResult) -> str:
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
        table.format_main_table(found),
    ]
    if found.row("pac-dp", "certified") is not None and found.study.seeds > 1:
        parts.append(table.format_gains_table(found))
    if found.sweep:
        parts += ["Accuracy in % by budget, certified:", table.format_sweep_table(found)]
    by_budget = table.format_budget_table(found)
    return "\n\n".join([*parts, by_budget] if by_budget else parts)


def _page(found: StudyResult, curve: Curve | None) -> str:
    """All that is certified, and PAC-DP as published beside it."""
    study = found.study
    arms = {label_arm(arm): runs for arm, runs in found.arms("certified").items()}
    published = found.arms("as-published")
    for arm in ["pac-dp"] if "pac-dp" in published else published:
        arms[f"{label_arm(arm)}, as published"] = published[arm]
    notes = [SMOKE_NOTE] if found.profile == "smoke" else []
    notes += [f"Trained on {found.data}.", f"The paper: {study.paper.where}. {study.paper.said}"]
    notes += [study.note] if study.note else []
    notes += [
        f"The paper reports {100 * value:.1f} % for {label_arm(arm)}."
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


def _plot_sweep(found: StudyResult, comparison: Comparison) -> Chart:
    series: dict[str, dict[float, list[float]]] = {}
    for row in found.sweep:
        assert row.epsilon is not None
        series.setdefault(label_arm(row.arm), {})[row.epsilon] = row.accuracies
    return plot_by_epsilon(
        series,
        terms=comparison.terms,
        baseline=found.chance,
        styles=comparison.styles,
        title="Final accuracy against ε, certified",
    )
