"""The study of weights: rules for the weight of a client's update, compared with its size.

Every partition is run with the same configuration, which was tuned without knowing it.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry
from pacdp.paper.studies.summary import ArmResult
from pacdp.paper.studies.tuned_runs import run_tuned, tune_entry
from pacdp.reporting.comparison import describe_terms

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
    standard, *others = study.rules
    rows, records, gains = [], [], {}
    for entry, arms in zip(study.entries, results, strict=True):
        rows += [
            {
                "study": study.name,
                "profile": profile,
                "dealt": entry.setting,
                "weights": rule,
                "seed": run.seed,
                "accuracy": run.accuracy,
                "chance": run.chance,
                "delta": run.plan.privacy.delta,
                "adjacency": run.plan.privacy.adjacency,
            }
            for rule, arm in arms.items()
            for run in arm.runs
        ]
        gains[entry.setting] = {rule: arms[rule].gain_over(arms[standard]) for rule in others}
        percent = {rule: table.format_percent(arm.accuracy) for rule, arm in arms.items()}
        record = [("partition", entry.setting), (f"{standard}, %", percent[standard])]
        for rule, gain in gains[entry.setting].items():
            record += [(f"{rule}, %", percent[rule]), ("points ± standard error", str(gain))]
            record.append(("verdict", gain.verdict))
        records.append(record)
    terms = describe_terms(results[0][standard].runs[0].plan)
    caption = f"ε at {terms}. PAC-DP with the same configuration for every rule."
    text = f"{caption}\n\n{table.format_records(records)}"
    figure = draw_gains({f"compared with weights by {standard}": gains})
    return Section(study, text, table.format_csv(rows), figure)


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
