"""Studies that compare methods: all runs, tables, the figure and the report."""

from collections.abc import Sequence
from functools import partial

from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.formatting import format_bytes, format_count
from pacdp.methods.pac_dp import PacDp
from pacdp.paper.figures.studies import draw_comparison
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job, StudyRun, build_job, list_runs
from pacdp.paper.studies.section import SMOKE_NOTE, Section, StepCounter, WorkItem, describe_data
from pacdp.paper.studies.study import Study, label_arm
from pacdp.paper.studies.summary import StudyResult, collect_results
from pacdp.reporting import Chart, Comparison, render_page
from pacdp.reporting.comparison import describe_terms
from pacdp.reporting.figures.comparison import plot_by_epsilon


def split_comparison(study: Study) -> list[WorkItem]:
    """List one item per run."""
    return [
        WorkItem(f"{study.name}: {label_arm(spec.arm)}", 1, partial(_run, study, spec))
        for spec in list_runs(study)
    ]


def build_comparison(
    study: Study, profile: str, results: Sequence[tuple[StudyRun, Job, RunResult]]
) -> Section:
    """Describe the results of all runs."""
    curve = None
    for spec, job, _ in results:
        if spec.reading == "certified" and isinstance(job.method, PacDp) and study.fit:
            curve = job.method.curve
    runs = {spec: run for spec, _, run in results}
    data = describe_data(study.experiment, profile=profile)
    result = collect_results(study, runs, profile=profile, data=data)
    csv, figure = table.format_runs_csv(result), draw_comparison(result)
    return Section(study, _format_text(result), csv, figure, _render_report(result, curve))


def _run(
    study: Study, spec: StudyRun, store: ArtifactStore, counter: StepCounter
) -> tuple[StudyRun, Job, RunResult]:
    with counter.step(f"{study.name}: {label_arm(spec.arm)}"):
        job = build_job(study, spec, profile=store.profile, fit=store.curve)
        return spec, job, store.result(job)


def _format_text(result: StudyResult) -> str:
    first = result.rows[0].runs[0]
    plan, training = first.plan, first.plan.training
    batches = "full batches" if training.batch == "full" else f"batches of {training.batch}"
    seeds = format_count(result.study.seeds, "seed")
    parts = [
        f"**This run:** {result.data}, {len(plan.clients)} clients, {plan.per_round} per round, "
        f"{format_count(plan.rounds, 'round')}, {plan.model.name} ({first.parameters:,} "
        f"parameters), {format_count(training.local_epochs or 1, 'local epoch')}, {batches}, "
        f"{training.optimiser.name} with learning rate {training.optimiser.lr:g}; "
        f"{format_bytes(first.bytes_per_round * plan.rounds)} of traffic in total; {seeds}"
        f"{', mean ± standard deviation' if result.study.seeds > 1 else ''}. "
        f"ε at {describe_terms(plan)}; majority-class baseline {100 * result.chance:.1f} %.",
        table.format_main_table(result),
    ]
    if result.row("pac-dp", "certified") is not None and result.study.seeds > 1:
        parts.append(table.format_gains_table(result))
    if result.sweep:
        parts += ["Accuracy in % by budget, certified:", table.format_sweep_table(result)]
    by_budget = table.format_budget_table(result)
    return "\n\n".join([*parts, by_budget] if by_budget else parts)


def _render_report(result: StudyResult, curve: Curve | None) -> str:
    """Render all certified arms, with PAC-DP as published for comparison."""
    study = result.study
    arms = {label_arm(arm): runs for arm, runs in result.arms("certified").items()}
    published = result.arms("as-published")
    for arm in ["pac-dp"] if "pac-dp" in published else published:
        arms[f"{label_arm(arm)}, as published"] = published[arm]
    notes = [SMOKE_NOTE] if result.profile == "smoke" else []
    notes += [f"Trained on {result.data}.", f"The paper: {study.paper.where}. {study.paper.said}"]
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
        commands=[f"pacdp reproduce {study.name} --profile {result.profile}"],
        notes=notes,
        extra_charts=[_plot_sweep(result, comparison)] if result.sweep else [],
    )


def _plot_sweep(result: StudyResult, comparison: Comparison) -> Chart:
    series: dict[str, dict[float, list[float]]] = {}
    for row in result.sweep:
        assert row.epsilon is not None
        series.setdefault(label_arm(row.arm), {})[row.epsilon] = row.accuracies
    return plot_by_epsilon(
        series,
        terms=comparison.terms,
        baseline=result.chance,
        styles=comparison.styles,
        title="Final accuracy against ε, certified",
    )
