"""One setting at a time, over and over: a search whose every step can be told.

A setting moves only where the gain is larger than its standard error, seed by seed: what cannot be
told from noise stays as it was.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pacdp.stats import paired_difference

Point = Mapping[str, Any]
# How good a point is under each of several seeds: higher is better.
Score = Callable[[Point, Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class Trial:
    """A value of one setting, and how good it was."""

    value: Any
    mean: float
    gain: float
    """Over the value that stood before."""
    error: float
    """Standard error of the gain."""


@dataclass(frozen=True)
class SearchStep:
    """One setting looked at, all others as they stood."""

    setting: str
    before: Any
    after: Any
    tried: tuple[Trial, ...]


@dataclass(frozen=True)
class SearchResult:
    """Where the search ended, and how it got there."""

    point: dict[str, Any]
    steps: tuple[SearchStep, ...]
    trainings: int

    def then(self, later: "SearchResult") -> "SearchResult":
        """This search, and one that went on from where it ended."""
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
    """Improve one setting after the other until nothing moves, or for so many sweeps.

    >>> found = search_coordinates(
    ...     {"x": [0, 1, 2], "y": [0, 1]}, {"x": 0, "y": 0},
    ...     lambda point, seeds: [-abs(point["x"] - 1) - point["y"]] * 2, seeds=[0, 1], sweeps=3,
    ... )
    >>> found.point, len(found.steps), found.trainings
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
            standing = scores(point)
            tried = tuple(
                _tried(value, scores({**point, setting: value}), standing) for value in values
            )
            best = max(tried, key=lambda one: one.mean)
            before = point[setting]
            if best.gain > best.error:
                point[setting] = best.value
            moved = moved or point[setting] != before
            steps.append(SearchStep(setting, before, point[setting], tried))
        if not moved:
            break
    return SearchResult(point, tuple(steps), len(seeds) * len(known))


def compare_scores(scores: Mapping[str, Sequence[float]], standing: str) -> tuple[Trial, ...]:
    """Each of several against the one that stands.

    >>> compare_scores({"a": [1.0, 1.0], "b": [2.0, 3.0]}, "a")[1]
    Trial(value='b', mean=2.5, gain=1.5, error=0.5)
    """
    return tuple(_tried(value, own, scores[standing]) for value, own in scores.items())


def _tried(value: Any, scores: Sequence[float], standing: Sequence[float]) -> Trial:
    gain = paired_difference(scores, standing)
    return Trial(value, statistics.fmean(scores), gain.mean, gain.standard_error)
