"""The search space, and the conversion of its points to settings of an experiment."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merge_settings
from pacdp.methods import find_method


def search_axes(
    experiment: Experiment, method: str, *, clients: Sequence[int], most: int | None
) -> dict[str, list[Any]]:
    """Return the values of each setting; ``most`` is the number of projection directions.

    The distance lr·rounds·steps·C is how far a model can move if every gradient is clipped. Because
    it is held, rounds, steps and C can be searched independently.

    >>> from pacdp.experiments import read_experiment
    >>> search_axes(read_experiment("heart"), "fixed", clients=[200, 100, 80], most=None)["batch"]
    ['full', 25, 6]
    """
    median = float(np.median(clients))
    batches = [max(1, round(median / part)) for part in (4, 16)]
    axes: dict[str, list[Any]] = {
        "distance": _decades(-1, 4, 3),
        "rounds": [1, 2, 5, 10, 20, 40],
        "bound": _decades(-2, 1, 2),
        "local steps": [1, 2, 4],
        "batch": ["full", *dict.fromkeys(batches)],
        "averaging": [0.0, 0.5],
    }
    if most is not None:
        doubled = [2**power for power in range(3, 10) if 2**power < most]
        axes = {
            "distance": axes.pop("distance"),
            "dimension": [*doubled, most],
            "whitening": [0.0, 0.5, 1.0],
            **axes,
        }
    if experiment.model.name == "logistic":
        axes["bias"] = [False, True]
    if experiment.hot_start is not None:
        # The learning rate of Adam in the warm start.
        axes["hot start"] = ["none", *_decades(-3, -1, 1)]
    kind = find_method(method)
    axes |= {name: list(values) for name, values in kind.searched.items()}
    if not kind.has_bound():
        # The method does not clip.
        del axes["bound"]
    return axes


def _decades(low: int, high: int, each: int) -> list[float]:
    """Space numbers evenly on a logarithmic scale, rounded to three digits."""
    count = (high - low) * each + 1
    return [float(f"{value:.3g}") for value in np.logspace(low, high, count)]


def starting_point(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the start of a search: the middle of numeric axes, the first value of others.

    >>> starting_point({"rounds": [1, 2, 5], "batch": ["full", 8]})
    {'rounds': 2, 'batch': 'full'}
    """
    numeric = ("distance", "dimension", "whitening", "rounds", "bound")
    return {
        name: values[(len(values) - 1) // 2] if name in numeric else values[0]
        for name, values in axes.items()
    }


def apply_point(experiment: Experiment, method: str, point: Mapping[str, Any]) -> Experiment:
    """Apply a point to an experiment; PAC-DP has one bound for all until F is fitted.

    >>> from pacdp.experiments import read_experiment
    >>> heart = read_experiment("heart")
    >>> point = {"distance": 8.0, "rounds": 2, "local steps": 1, "bound": 2.0, "batch": "full",
    ...          "averaging": 0.5}
    >>> apply_point(heart, "fixed", point).training.rounds
    2
    """
    return apply_changes(experiment, point_to_changes(method, point))


def apply_changes(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Apply nested changes to an experiment; a curve is replaced as a whole, not merged.

    >>> from pacdp.experiments import read_experiment
    >>> curve = {"family": "power", "coefficients": [2.0, 0.0]}
    >>> changed = apply_changes(read_experiment("heart"), {"methods": {"pac-dp": {"curve": curve}}})
    >>> changed.methods["pac-dp"]["curve"]
    {'family': 'power', 'coefficients': [2.0, 0.0]}
    """
    content = experiment.model_dump(mode="json", exclude_unset=True, exclude={"profiles"})
    merged = merge_settings(content, changes)
    # The domain or the evidence of another curve would not belong to this one.
    for name, settings in changes.get("methods", {}).items():
        if "curve" in settings:
            merged["methods"][name]["curve"] = settings["curve"]
    return Experiment.model_validate(merged)


def point_to_changes(method: str, point: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a point to changes of an experiment.

    >>> point_to_changes("fixed", {"distance": 8.0, "rounds": 2, "local steps": 1, "bound": 2.0,
    ...                   "batch": "full", "averaging": 0.5})["training"]["optimiser"]["lr"]
    2.0
    """
    rounds, steps, kind = point["rounds"], point["local steps"], find_method(method)
    searched = {name: point[name] for name in kind.searched}
    rate = point["distance"] / (rounds * steps * point.get("bound", 1.0))
    changes: dict[str, Any] = {
        "training": {
            "rounds": rounds,
            "clients_per_round": "all",
            "sampling": "balanced",
            "batch": point["batch"],
            "local_epochs": None,
            "local_steps": steps,
            "optimiser": {"name": "sgd", "lr": float(f"{rate:.6g}")},
        },
        "server": {"average_last": point["averaging"]},
        "methods": {method: kind.settings_at(point.get("bound"), searched)},
    }
    if "weights" in point:
        changes["server"]["weights"] = point["weights"]
    if "dimension" in point:
        changes["representation"] = {key: point[key] for key in ("dimension", "whitening")}
    if "hot start" in point:
        rate = point["hot start"]
        changes["hot_start"] = None if rate == "none" else {"lr": rate}
    if "bias" in point:
        changes["model"] = {"settings": {"bias": float(point["bias"])}}
    return changes


def format_point(point: Mapping[str, Any]) -> str:
    """Format a point for people.

    >>> format_point({"rounds": 5, "batch": "full", "distance": 46.4})
    'rounds 5, batch full, distance 46.4'
    """
    return ", ".join(
        f"{name} {value:g}" if _is_number(value) else f"{name} {value}"
        for name, value in point.items()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
