"""Coordinate search: improve one setting at a time, and record every step.

A setting changes only if the gain, paired by seed, is larger than its standard error, so that
differences within the noise change nothing.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pacdp.stats import paired_difference

Point = Mapping[str, Any]
# Scores a point under each of several seeds; higher is better.
Score = Callable[[Point, Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class Trial:
    """A value of a setting, and its score."""

    value: Any
    mean: float
    gain: float
    """Difference to the current value."""
    error: float
    """Standard error of the gain."""


@dataclass(frozen=True)
class SearchStep:
    """The comparison of the values of one setting, with all others held."""

    setting: str
    before: Any
    after: Any
    tried: tuple[Trial, ...]


@dataclass(frozen=True)
class SearchResult:
    """The final point of a search, and its steps."""

    point: dict[str, Any]
    steps: tuple[SearchStep, ...]
    trainings: int

    def then(self, later: "SearchResult") -> "SearchResult":
        """Append a search that continued from this point."""
        steps, trainings = self.steps + later.steps, self.trainings + later.trainings
        return SearchResult(later.point, steps, trainings)


def search_coordinates(
    axes: Mapping[str, Sequence[Any]],
    start: Point,
    score: Score,
    *,
    seeds: Sequence[int],
    sweeps: int,
) -> SearchResult:
    """Improve one setting after the other until none changes, at most ``sweeps`` times.

    >>> result = search_coordinates(
    ...     {"x": [0, 1, 2], "y": [0, 1]}, {"x": 0, "y": 0},
    ...     lambda point, seeds: [-abs(point["x"] - 1) - point["y"]] * 2, seeds=[0, 1], sweeps=3,
    ... )
    >>> result.point, len(result.steps), result.trainings
    ({'x': 1, 'y': 0}, 4, 8)
    """
    point = dict(start)
    known: dict[str, Sequence[float]] = {}

    def scores(candidate: Point) -> Sequence[float]:
        key = repr(sorted(candidate.items()))
        if key not in known:
            known[key] = score(candidate, seeds)
        return known[key]

    steps: list[SearchStep] = []
    for _ in range(sweeps):
        moved = False
        for setting, values in axes.items():
            current = scores(point)
            tried = tuple(
                _make_trial(value, scores({**point, setting: value}), current) for value in values
            )
            best = max(tried, key=lambda trial: trial.mean)
            before = point[setting]
            if best.gain > best.error:
                point[setting] = best.value
            moved = moved or point[setting] != before
            steps.append(SearchStep(setting, before, point[setting], tried))
        if not moved:
            break
    return SearchResult(point, tuple(steps), len(seeds) * len(known))


def compare_scores(scores: Mapping[str, Sequence[float]], current: str) -> tuple[Trial, ...]:
    """Compare the scores of several values with those of the current one.

    >>> compare_scores({"a": [1.0, 1.0], "b": [2.0, 3.0]}, "a")[1]
    Trial(value='b', mean=2.5, gain=1.5, error=0.5)
    """
    return tuple(_make_trial(value, own, scores[current]) for value, own in scores.items())


def _make_trial(value: Any, scores: Sequence[float], current: Sequence[float]) -> Trial:
    gain = paired_difference(scores, current)
    return Trial(value, statistics.fmean(scores), gain.mean, gain.standard_error)
