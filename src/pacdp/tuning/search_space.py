"""What is searched over, and what a point of the search means for an experiment."""

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
    """The values of each setting that are tried; ``most`` is how many directions there are.

    The distance is lr·rounds·steps·C, how far a model whose every gradient is clipped can go: with
    it held, rounds, steps and C can be changed one at a time.

    >>> from pacdp.experiments import read_experiment
    >>> search_axes(read_experiment("heart"), "fixed", clients=[200, 100, 80], most=None)["batch"]
    ['full', 25, 6]
    """
    usual = float(np.median(clients))
    batches = [max(1, round(usual / part)) for part in (4, 16)]
    found: dict[str, list[Any]] = {
        "distance": _decades(-1, 4, 3),
        "rounds": [1, 2, 5, 10, 20, 40],
        "bound": _decades(-2, 1, 2),
        "local steps": [1, 2, 4],
        "batch": ["full", *dict.fromkeys(batches)],
        "averaging": [0.0, 0.5],
    }
    if most is not None:
        doubled = [2**power for power in range(3, 10) if 2**power < most]
        found = {
            "distance": found.pop("distance"),
            "dimension": [*doubled, most],
            "whitening": [0.0, 0.5, 1.0],
            **found,
        }
    if experiment.model.name == "logistic":
        found["bias"] = [False, True]
    if experiment.hot_start is not None:
        # The rate of Adam says how far public records take the first model.
        found["hot start"] = ["none", *_decades(-3, -1, 1)]
    kind = find_method(method)
    found |= {name: list(values) for name, values in kind.searched.items()}
    if not kind.has_bound():
        # Nothing is clipped: the bound has no meaning.
        del found["bound"]
    return found


def _decades(low: int, high: int, each: int) -> list[float]:
    """Numbers evenly spaced in their logarithm, to three digits."""
    count = (high - low) * each + 1
    return [float(f"{value:.3g}") for value in np.logspace(low, high, count)]


def starting_point(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Where a search starts: numbers in the middle of their axis, and the simplest of the rest.

    >>> starting_point({"rounds": [1, 2, 5], "batch": ["full", 8]})
    {'rounds': 2, 'batch': 'full'}
    """
    middling = ("distance", "dimension", "whitening", "rounds", "bound")
    return {
        name: values[(len(values) - 1) // 2] if name in middling else values[0]
        for name, values in axes.items()
    }


def apply_point(experiment: Experiment, method: str, point: Mapping[str, Any]) -> Experiment:
    """The experiment at a point; PAC-DP has one bound for all until F is fitted.

    >>> from pacdp.experiments import read_experiment
    >>> heart = read_experiment("heart")
    >>> point = {"distance": 8.0, "rounds": 2, "local steps": 1, "bound": 2.0, "batch": "full",
    ...          "averaging": 0.5}
    >>> apply_point(heart, "fixed", point).training.rounds
    2
    """
    return apply_changes(experiment, point_to_changes(method, point))


def apply_changes(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The experiment with nested changes; a curve is replaced as a whole, never mixed with another.

    >>> from pacdp.experiments import read_experiment
    >>> curve = {"family": "power", "coefficients": [2.0, 0.0]}
    >>> made = apply_changes(read_experiment("heart"), {"methods": {"pac-dp": {"curve": curve}}})
    >>> made.methods["pac-dp"]["curve"]
    {'family': 'power', 'coefficients': [2.0, 0.0]}
    """
    content = experiment.model_dump(mode="json", exclude_unset=True, exclude={"profiles"})
    made = merge_settings(content, changes)
    # Another curve's domain or evidence would speak for this one.
    for name, settings in changes.get("methods", {}).items():
        if "curve" in settings:
            made["methods"][name]["curve"] = settings["curve"]
    return Experiment.model_validate(made)


def point_to_changes(method: str, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point as changes of an experiment.

    >>> point_to_changes("fixed", {"distance": 8.0, "rounds": 2, "local steps": 1, "bound": 2.0,
    ...                   "batch": "full", "averaging": 0.5})["training"]["optimiser"]["lr"]
    2.0
    """
    rounds, steps, kind = point["rounds"], point["local steps"], find_method(method)
    searched = {name: point[name] for name in kind.searched}
    rate = point["distance"] / (rounds * steps * point.get("bound", 1.0))
    made: dict[str, Any] = {
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
        made["server"]["weights"] = point["weights"]
    if "dimension" in point:
        made["representation"] = {key: point[key] for key in ("dimension", "whitening")}
    if "hot start" in point:
        rate = point["hot start"]
        made["hot_start"] = None if rate == "none" else {"lr": rate}
    if "bias" in point:
        made["model"] = {"settings": {"bias": float(point["bias"])}}
    return made


def format_point(point: Mapping[str, Any]) -> str:
    """A point in words.

    >>> format_point({"rounds": 5, "batch": "full", "distance": 46.4})
    'rounds 5, batch full, distance 46.4'
    """
    return ", ".join(
        f"{name} {value:g}" if _number(value) else f"{name} {value}"
        for name, value in point.items()
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
