"""What PAC-DP costs beside a fixed C: seconds before training, seconds a round, and bytes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from pacdp.experiments import Experiment, prepare
from pacdp.experiments.execute import execute, summary
from pacdp.experiments.offline import setting_for
from pacdp.experiments.prepare import read_data
from pacdp.offline import fit_curve


def measure(
    experiment: Experiment, *, turns: int, observe: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Fit a curve, then train with it and with a fixed C in turns.

    The first turn of each warms up and is not counted. The ratio is the median over turns.
    """
    read = read_data(experiment.data, seed=0)
    setting = setting_for(experiment, read=read)
    started = time.perf_counter()
    curve = fit_curve(setting, experiment.offline)
    offline = time.perf_counter() - started
    evidence = curve.evidence
    observe()
    methods = {
        "pac-dp": experiment.made_method("pac-dp", {"curve": curve}),
        "fixed": experiment.made_method("fixed"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    result: dict[str, Any] = {}
    for _ in range(turns + 1):
        for name, method in methods.items():
            ready = prepare(experiment, method=method, read=read)
            made = execute(ready)
            seconds[name].append(made.seconds / experiment.training.rounds)
            result = summary(ready, made, profile=None)
            observe()
    ratios = [a / b for a, b in zip(seconds["pac-dp"][1:], seconds["fixed"][1:], strict=True)]
    return {
        "experiment": experiment.name,
        "trainings": len(evidence["budgets"]) * len(evidence["bounds"]) * len(evidence["seeds"]),
        "offline_seconds": offline,
        "pac_dp_seconds_a_round": statistics.median(seconds["pac-dp"][1:]),
        "fixed_seconds_a_round": statistics.median(seconds["fixed"][1:]),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "bytes_per_round": result["bytes_per_round"],
    }
