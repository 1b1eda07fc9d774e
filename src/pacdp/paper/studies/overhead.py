"""The study of overhead: time and bytes that PAC-DP needs, compared with a fixed C."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pacdp.experiments import Experiment, RunResult, prepare_run
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import read_data
from pacdp.offline import fit_curve
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import hash_text
from pacdp.paper.studies.section import Section, StepCounter, WorkItem, describe_experiment
from pacdp.paper.studies.study import Study, load_study_experiment
from pacdp.storage import write_atomically


def split_overhead(study: Study) -> list[WorkItem]:
    """List one item per experiment; nothing else may run while times are measured."""
    # Of two methods, one turn more than is counted, and a fit.
    steps = 2 * study.seeds + 3
    return [
        WorkItem(f"{study.name}: {name}", steps, partial(_measure, study, name, steps))
        for name in study.experiments
    ]


def _measure(
    study: Study, name: str, steps: int, store: ArtifactStore, counter: StepCounter
) -> dict[str, Any]:
    experiment = load_study_experiment(name, study.changes, profile=store.profile)
    key = hash_text(f"{experiment.model_dump_json()} {study.seeds}")
    path = store.folder / "runs" / f"overhead-{name}-{key}.json"
    with counter.step(f"{study.name}: {name}", steps):
        if not path.is_file():
            times = measure_overhead(experiment, turns=study.seeds)
            write_atomically(path, json.dumps(times, indent=2) + "\n")
    described = describe_experiment(name, profile=store.profile)
    return {"experiment": described, **json.loads(path.read_text())}


def build_overhead(study: Study, profile: str, results: Sequence[Mapping[str, Any]]) -> Section:
    """Describe all measurements."""
    records = [
        {
            "experiment": row["experiment"],
            "offline phase, s": f"{row['offline_seconds']:.1f} for {row['trainings']} trainings",
            "PAC-DP, s per round": f"{row['pac_dp_seconds_a_round']:.3g}",
            "fixed C, s per round": f"{row['fixed_seconds_a_round']:.3g}",
            "ratio (range over turns)": f"{row['ratio']:.2f} "
            f"({row['ratio_least']:.2f} to {row['ratio_most']:.2f})",
            "bytes per round, the same for both": f"{row['bytes_per_round']:,}",
        }.items()
        for row in results
    ]
    return Section(study, table.format_records(records), table.format_csv(results))


def measure_overhead(experiment: Experiment, *, turns: int) -> dict[str, Any]:
    """Fit a curve, then train with it and with a fixed C in turns.

    The first turn of each is a warm-up and not counted. The ratio is the median over turns.
    """
    read = read_data(experiment.data, seed=0)
    proxy_task = make_proxy_task(experiment, read=read)
    started = time.perf_counter()
    curve = fit_curve(proxy_task, experiment.offline)
    offline = time.perf_counter() - started
    evidence = curve.evidence
    methods = {
        "pac-dp": experiment.build_method("pac-dp", {"curve": curve}),
        "fixed": experiment.build_method("fixed"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns + 1):
        for name, method in methods.items():
            prepared = prepare_run(experiment, method=method, read=read)
            result = RunResult.of(prepared, simulate_run(prepared))
            seconds[name].append(result.seconds / experiment.training.rounds)
    ours, fixed = seconds["pac-dp"][1:], seconds["fixed"][1:]
    ratios = [a / b for a, b in zip(ours, fixed, strict=True)]
    return {
        "trainings": len(evidence.budgets) * len(evidence.bounds) * len(evidence.seeds),
        "offline_seconds": offline,
        "pac_dp_seconds_a_round": statistics.median(ours),
        "fixed_seconds_a_round": statistics.median(fixed),
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "bytes_per_round": result.bytes_per_round,
    }
