"""What a client's update should count where budgets differ: rules, against weights by size.

Every way of dealing records out is tried with the same plan, which was chosen without knowing it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pacdp.experiments.experiment import merge_settings
from pacdp.formatting import format_terms
from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Observer, Section, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry, load_study_experiment
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.tuning import apply_configuration

# Far from the seeds of the search.
_FIRST = 200


@dataclass(frozen=True, eq=False)
class WeightingResult:
    """What the rules gave under one way of dealing records out."""

    entry: StudyEntry
    rows: dict[str, ArmResult]

    def gain(self, rule: str, standard: str) -> AccuracyGain:
        """A rule against the standard, seed by seed."""
        return AccuracyGain.of(standard, self.rows[rule].accuracies, self.rows[standard].accuracies)


def split_weights(study: Study) -> list[WorkItem]:
    """Each way of dealing records out is one."""
    return [
        WorkItem(f"weights: {entry.setting}", len(study.rules), partial(_dealt, entry, study))
        for entry in study.entries
    ]


def build_weights(study: Study, store: ArtifactStore, observe: Observer) -> Section:
    """Run each rule under each way of dealing records out."""
    found = [_dealt(entry, study, store, observe) for entry in study.entries]
    lines = [
        {
            "study": study.name,
            "profile": store.profile,
            "dealt": one.entry.setting,
            "weights": rule,
            "seed": run.seed,
            "accuracy": run.accuracy,
            "chance": run.chance,
            "delta": run.plan.privacy.delta,
            "adjacency": run.plan.privacy.adjacency,
        }
        for one in found
        for rule, row in one.rows.items()
        for run in row.runs
    ]
    standard, *others = study.rules
    panel = {
        one.entry.setting: {rule: one.gain(rule, standard) for rule in others} for one in found
    }
    figure = draw_gains({f"against weights by {standard}": panel})
    return Section(study, _text(study, found), table.format_csv(lines), figure)


def _dealt(
    entry: StudyEntry, study: Study, store: ArtifactStore, observe: Observer
) -> WeightingResult:
    base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
    plan = store.plan(base, "pac-dp", seeds=entry.search, sweeps=entry.sweeps)
    rows = {}
    for rule in study.rules:
        words = f"weights: {entry.setting}, {rule}"
        observe(words, 0)
        runs = []
        for seed in range(_FIRST, _FIRST + entry.seeds):
            dealt = entry.dealt
            if entry.split:
                dealt = merge_settings(dealt, {"options": {"split": seed}})
            own = load_study_experiment(
                entry.experiment,
                merge_settings(entry.changes, {"data": dealt}),
                profile=store.profile,
            )
            made = apply_configuration(own, plan)
            server = made.server.model_copy(update={"weights": rule})
            made = made.model_copy(update={"server": server})
            # F was fitted under the weights that the search chose; here only they differ.
            runs.append(
                store.result(
                    Job(made, made.build_method("pac-dp", {"allow_plan_mismatch": True}), seed)
                )
            )
        rows[rule] = ArmResult(rule, "certified", runs)
        observe(words, 1)
    return WeightingResult(entry, rows)


def _text(study: Study, found: Sequence[WeightingResult]) -> str:
    standard, *others = study.rules
    privacy = found[0].rows[standard].runs[0].plan.privacy
    headings = ["records dealt out", f"{standard}, %"]
    for rule in others:
        headings += [f"{rule}, %", "points ± standard error", "it"]
    rows = []
    for one in found:
        cells = [one.entry.setting, _percent(one.rows[standard])]
        for rule in others:
            gain = one.gain(rule, standard)
            cells += [
                _percent(one.rows[rule]),
                f"{gain.points:+.1f} ± {gain.standard_error:.1f}",
                gain.verdict,
            ]
        rows.append(cells)
    terms = format_terms(privacy.delta, privacy.adjacency)
    said = f"ε at {terms}. PAC-DP, each rule with the same plan."
    return f"{said}\n\n{table.format_markdown(headings, rows)}"


def _percent(row: ArmResult) -> str:
    return table.format_percent(row.accuracy)
