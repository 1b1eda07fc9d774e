"""The study of weights: rules for the weight of a client's update, compared with its size.

Every partition is run with the same configuration, which was tuned without knowing it.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pacdp.formatting import format_terms
from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.paper.studies.tuned_runs import run_tuned, tune_entry

# Far from the seeds of the search.
_FIRST_SEED = 200


def split_weights(study: Study) -> list[WorkItem]:
    """List one item per partition."""
    return [
        WorkItem(f"weights: {entry.setting}", len(study.rules), partial(_run_rules, entry, study))
        for entry in study.entries
    ]


def build_weights(
    study: Study, profile: str, results: Sequence[Mapping[str, ArmResult]]
) -> Section:
    """Compare the rules under each partition."""
    by_setting = {entry.setting: arms for entry, arms in zip(study.entries, results, strict=True)}
    rows = [
        {
            "study": study.name,
            "profile": profile,
            "dealt": setting,
            "weights": rule,
            "seed": run.seed,
            "accuracy": run.accuracy,
            "chance": run.chance,
            "delta": run.plan.privacy.delta,
            "adjacency": run.plan.privacy.adjacency,
        }
        for setting, arms in by_setting.items()
        for rule, arm in arms.items()
        for run in arm.runs
    ]
    standard, *others = study.rules
    gains = {
        setting: {rule: arms[rule].gain_over(arms[standard]) for rule in others}
        for setting, arms in by_setting.items()
    }
    figure = draw_gains({f"compared with weights by {standard}": gains})
    return Section(study, _format_text(study, by_setting, gains), table.format_csv(rows), figure)


def _run_rules(
    entry: StudyEntry, study: Study, store: ArtifactStore, counter: StepCounter
) -> dict[str, ArmResult]:
    tuned = tune_entry(entry, store)
    results = {}
    for rule in study.rules:
        with counter.step(f"weights: {entry.setting}, {rule}"):
            results[rule] = run_tuned(
                *(entry, tuned, store),
                first=_FIRST_SEED,
                updates={"server": {"weights": rule}},
                # F was fitted under the weights that the search chose; only these differ here.
                settings={"allow_plan_mismatch": True},
            )
    return results


def _format_text(
    study: Study,
    results: Mapping[str, Mapping[str, ArmResult]],
    gains: Mapping[str, Mapping[str, AccuracyGain]],
) -> str:
    standard = study.rules[0]
    records = []
    for setting, arms in results.items():
        record = [
            ("partition", setting),
            (f"{standard}, %", table.format_percent(arms[standard].accuracy)),
        ]
        for rule, gain in gains[setting].items():
            record += [
                (f"{rule}, %", table.format_percent(arms[rule].accuracy)),
                ("points ± standard error", str(gain)),
                ("verdict", gain.verdict),
            ]
        records.append(record)
    privacy = next(iter(results.values()))[standard].runs[0].plan.privacy
    terms = format_terms(privacy.delta, privacy.adjacency)
    caption = f"ε at {terms}. PAC-DP with the same configuration for every rule."
    return f"{caption}\n\n{table.format_records(records)}"
