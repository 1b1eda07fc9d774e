"""The study of weights: rules for the weight of a client's update, compared with its size.

Every partition is run with the same configuration, which was tuned without knowing it.
"""

from collections.abc import Mapping
from functools import partial

from pacdp.experiments.experiment import merge_settings
from pacdp.formatting import format_terms
from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry, load_study_experiment
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.tuning import apply_configuration

# Far from the seeds of the search.
_FIRST_SEED = 200


def split_weights(study: Study) -> list[WorkItem]:
    """List one item per partition."""
    return [
        WorkItem(f"weights: {entry.setting}", len(study.rules), partial(_run_rules, entry, study))
        for entry in study.entries
    ]


def build_weights(study: Study, store: ArtifactStore, counter: StepCounter) -> Section:
    """Run each rule under each partition, and compare the rules."""
    results = {entry.setting: _run_rules(entry, study, store, counter) for entry in study.entries}
    rows = [
        {
            "study": study.name,
            "profile": store.profile,
            "dealt": setting,
            "weights": rule,
            "seed": run.seed,
            "accuracy": run.accuracy,
            "chance": run.chance,
            "delta": run.plan.privacy.delta,
            "adjacency": run.plan.privacy.adjacency,
        }
        for setting, arms in results.items()
        for rule, arm in arms.items()
        for run in arm.runs
    ]
    standard, *others = study.rules
    gains = {
        setting: {rule: arms[rule].gain_over(arms[standard]) for rule in others}
        for setting, arms in results.items()
    }
    figure = draw_gains({f"compared with weights by {standard}": gains})
    return Section(study, _format_text(study, results, gains), table.format_csv(rows), figure)


def _run_rules(
    entry: StudyEntry, study: Study, store: ArtifactStore, counter: StepCounter
) -> dict[str, ArmResult]:
    base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
    tuned = store.configuration(base, "pac-dp", seeds=entry.search, sweeps=entry.sweeps)
    results = {}
    for rule in study.rules:
        runs = []
        with counter.step(f"weights: {entry.setting}, {rule}"):
            for seed in range(_FIRST_SEED, _FIRST_SEED + entry.seeds):
                data = entry.dealt
                if entry.split:
                    data = merge_settings(data, {"options": {"split": seed}})
                changes = merge_settings(entry.changes, {"data": data})
                experiment = apply_configuration(
                    load_study_experiment(entry.experiment, changes, profile=store.profile), tuned
                )
                server = experiment.server.model_copy(update={"weights": rule})
                experiment = experiment.model_copy(update={"server": server})
                # F was fitted under the weights that the search chose; only these differ here.
                method = experiment.build_method("pac-dp", {"allow_plan_mismatch": True})
                runs.append(store.result(Job(experiment, method, seed)))
        results[rule] = ArmResult(rule, "certified", runs)
    return results


def _format_text(
    study: Study,
    results: Mapping[str, Mapping[str, ArmResult]],
    gains: Mapping[str, Mapping[str, AccuracyGain]],
) -> str:
    standard, *others = study.rules
    headings = ["partition", f"{standard}, %"]
    for rule in others:
        headings += [f"{rule}, %", "points ± standard error", "verdict"]
    rows = []
    for setting, arms in results.items():
        cells = [setting, table.format_percent(arms[standard].accuracy)]
        for rule, gain in gains[setting].items():
            cells += [table.format_percent(arms[rule].accuracy), str(gain), gain.verdict]
        rows.append(cells)
    privacy = next(iter(results.values()))[standard].runs[0].plan.privacy
    terms = format_terms(privacy.delta, privacy.adjacency)
    caption = f"ε at {terms}. PAC-DP with the same configuration for every rule."
    return f"{caption}\n\n{table.format_markdown(headings, rows)}"
