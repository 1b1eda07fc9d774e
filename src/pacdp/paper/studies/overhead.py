"""What PAC-DP costs beside a fixed C: seconds before training, seconds a round, and bytes."""

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pacdp.experiments import Experiment, RunResult, prepare_run
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import read_data
from pacdp.offline import fit_curve
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Observer, Section, WorkItem, describe_experiment
from pacdp.paper.studies.study import Study, load_study_experiment
from pacdp.storage import write_atomically


def split_overhead(study: Study) -> list[WorkItem]:
    """All of it is one: nothing else may run while seconds are measured."""
    return [
        WorkItem(study.name, len(study.experiments) * _steps(study), partial(build_overhead, study))
    ]


def _steps(study: Study) -> int:
    """How many trainings and fits an experiment takes."""
    return 2 * study.seeds + 3


def build_overhead(study: Study, store: ArtifactStore, observe: Observer) -> Section:
    """Measure what is missing, and tell what was found."""
    found = []
    for name in study.experiments:
        experiment = load_study_experiment(name, study.changes, profile=store.profile)
        content = f"{experiment.model_dump_json()} {study.seeds}"
        key = hashlib.sha256(content.encode()).hexdigest()[:12]
        path = store.folder / "runs" / f"overhead-{name}-{key}.json"
        words = f"{study.name}: {name}"
        if path.is_file():
            observe(words, _steps(study))
        else:
            observe(words, 0)
            made = measure_overhead(
                experiment, turns=study.seeds, observe=partial(observe, words, 1)
            )
            write_atomically(path, json.dumps(made, indent=2) + "\n")
        called = describe_experiment(name, profile=store.profile)
        found.append({"experiment": called, **json.loads(path.read_text())})
    rows = [
        [
            one["experiment"],
            f"{one['offline_seconds']:.1f} for {one['trainings']} trainings",
            f"{one['pac_dp_seconds_a_round']:.3g}",
            f"{one['fixed_seconds_a_round']:.3g}",
            f"{one['ratio']:.2f} ({one['ratio_least']:.2f} to {one['ratio_most']:.2f})",
            f"{one['bytes_per_round']:,}",
        ]
        for one in found
    ]
    headings = ["experiment", "offline, s", "PAC-DP, s a round", "fixed C, s a round"]
    headings += ["ratio (over turns)", "bytes a round, both alike"]
    return Section(study, table.format_markdown(headings, rows), table.format_csv(found))


def measure_overhead(
    experiment: Experiment, *, turns: int, observe: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Fit a curve, then train with it and with a fixed C in turns.

    The first turn of each warms up and is not counted. The ratio is the median over turns.
    """
    read = read_data(experiment.data, seed=0)
    proxy_task = make_proxy_task(experiment, read=read)
    started = time.perf_counter()
    curve = fit_curve(proxy_task, experiment.offline)
    offline = time.perf_counter() - started
    evidence = curve.evidence
    observe()
    methods = {
        "pac-dp": experiment.build_method("pac-dp", {"curve": curve}),
        "fixed": experiment.build_method("fixed"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns + 1):
        for name, method in methods.items():
            ready = prepare_run(experiment, method=method, read=read)
            result = RunResult.of(ready, simulate_run(ready))
            seconds[name].append(result.seconds / experiment.training.rounds)
            observe()
    ratios = [a / b for a, b in zip(seconds["pac-dp"][1:], seconds["fixed"][1:], strict=True)]
    return {
        "trainings": len(evidence.budgets) * len(evidence.bounds) * len(evidence.seeds),
        "offline_seconds": offline,
        "pac_dp_seconds_a_round": statistics.median(seconds["pac-dp"][1:]),
        "fixed_seconds_a_round": statistics.median(seconds["fixed"][1:]),
        "ratio": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "bytes_per_round": result.bytes_per_round,
    }
