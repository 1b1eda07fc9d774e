"""Theorem 5 on a response surface whose C*(ε) is known.

The theorem says E|Ĉ − C*|² ≤ σ²/n + η². Least squares with k coefficients has the variance k·σ²/n:
the theorem leaves out the k. The utility gap it bounds by L·|Ĉ − C*|; at a smooth optimum the gap
is quadratic in that distance, and the bound is loose.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pacdp.curve import Curve, fit_curve_families, select_threshold
from pacdp.curve.evidence import Rule
from pacdp.errors import InputError
from pacdp.paper.theory.slopes import Slope, measure
from pacdp.validation import FloatArray, count, not_negative

LOW, HIGH = 0.05, 10.0
COUNTS = (6, 12, 24, 48)
PIPELINE_COUNTS = (4, 6, 9, 13)
SIGMAS = (0.02, 0.04, 0.08, 0.16)
SCORE_NOISES = (0.0, 0.01, 0.03, 0.1)
SEEDS = 3
BOUNDS = tuple(np.geomspace(0.02, 20, 13).tolist())
DEGREE = 2
# How fast a score falls with (ln C − ln C*)².
BEND = 0.05


def true_bound(epsilon: FloatArray) -> FloatArray:
    """C*(ε) of the made-up surface: a power, which no quadratic in ε is.

    >>> float(true_bound(np.array(1.0)))
    0.5
    """
    return np.asarray(0.5 * np.asarray(epsilon) ** 0.4)


def loss(bounds: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Of utility: smooth in ln C, and zero at C*.

    >>> float(loss(true_bound(np.array(2.0)), np.array(2.0)))
    0.0
    """
    return np.asarray(BEND * np.log(np.asarray(bounds) / true_bound(epsilon)) ** 2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Regression:
    """E|Ĉ − C*|² of least squares through noisy C_i, over n and over σ."""

    counts: tuple[int, ...]
    sigmas: tuple[float, ...]
    errors: FloatArray
    """(sigmas, counts, repeats)."""
    misfit: FloatArray
    """η² for each count: what is left without noise."""

    @property
    def variance(self) -> FloatArray:
        """What noise adds: (sigmas, counts, repeats)."""
        return np.asarray(self.errors - self.misfit[None, :, None])

    @property
    def factor(self) -> float:
        """The noise part over σ²/n: at most one by the theorem."""
        unit = np.square(self.sigmas)[:, None] / np.array(self.counts)
        return float((self.variance.mean(-1) / unit).mean())

    @property
    def slope(self) -> Slope:
        """Of the noise part over n, at the largest σ."""
        return measure(self.counts, self.variance[-1])


def regression(*, repeats: int = 400, degree: int = DEGREE, seed: int = 0) -> Regression:
    """The theorem's own model: independent errors of variance σ² on each C_i, and a polynomial.

    Budgets are evenly spaced, and ε is uniform over the same range.

    >>> found = regression(repeats=50)
    >>> 2 < found.factor < 4
    True
    """
    random = np.random.default_rng(seed)
    fine = np.linspace(LOW, HIGH, 400)
    errors = np.empty((len(SIGMAS), len(COUNTS), int(count("repeats", repeats))))
    misfit = np.empty(len(COUNTS))
    for column, number in enumerate(COUNTS):
        # In the middle of equal parts, so that they stand for a uniform ε.
        budgets = LOW + (HIGH - LOW) * (np.arange(number) + 0.5) / number
        through = np.vander(fine, degree + 1) @ np.linalg.pinv(np.vander(budgets, degree + 1))
        clean = through @ true_bound(budgets)
        misfit[column] = np.mean((clean - true_bound(fine)) ** 2)
        noise = random.normal(size=(number, repeats))
        for row, sigma in enumerate(SIGMAS):
            said = clean[:, None] + sigma * (through @ noise)
            errors[row, column] = ((said - true_bound(fine)[:, None]) ** 2).mean(0)
    return Regression(counts=COUNTS, sigmas=SIGMAS, errors=errors, misfit=misfit)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pipeline:
    """E|Ĉ − C*|² of a whole offline phase: scores, choice, fit."""

    name: str
    counts: tuple[int, ...]
    errors: FloatArray
    """(counts, repeats), at the noise of the scores that is not swept."""
    noises: tuple[float, ...]
    by_noise: FloatArray
    """(noises, repeats), at the number of budgets that is not swept."""
    distances: FloatArray
    """|Ĉ − C*| of many fits at many budgets: (fits, budgets)."""
    gaps: FloatArray
    """What each of them costs in utility."""
    refused: int
    """Fits that were not positive, and count for nothing."""

    @property
    def gap_slope(self) -> float:
        """How the gap grows with the distance: the median over budgets of slopes in log-log."""
        logs = np.log(np.maximum(self.distances, 1e-12)), np.log(np.maximum(self.gaps, 1e-24))
        x, y = (table - table.mean(0) for table in logs)
        return float(np.median((x * y).sum(0) / (x**2).sum(0)))


def pipelines(
    *, repeats: int = 12, counts: Sequence[int] = PIPELINE_COUNTS, seed: int = 0
) -> list[Pipeline]:
    """The paper's way, and the default of :mod:`pacdp.curve`.

    >>> [one.name for one in pipelines(repeats=1, counts=[4, 5])]
    ['argmax, quadratic', 'plateau, best family']
    """
    ways: list[tuple[str, Rule, str | None]] = [
        ("argmax, quadratic", "argmax", "quadratic"),
        ("plateau, best family", "plateau", None),
    ]
    return [_pipeline(*way, repeats, tuple(counts), seed) for way in ways]


def _pipeline(
    name: str, rule: Rule, family: str | None, repeats: int, counts: tuple[int, ...], seed: int
) -> Pipeline:
    middle, noise = counts[len(counts) // 2], SCORE_NOISES[2]
    fine = np.geomspace(LOW, HIGH, 60)
    truth = true_bound(fine)
    random = np.random.default_rng(seed)

    def one(number: int, score_noise: float) -> list[float]:
        curve = learned(number, score_noise, rule=rule, family=family, random=random)
        return [math.nan if curve is None else curve(float(epsilon)) for epsilon in fine]

    def found(cells: Iterable[tuple[int, float]]) -> tuple[FloatArray, int]:
        """Ĉ of each cell and repeat at the fine budgets; not a number where it was refused."""
        table = np.array([[one(*cell) for _ in range(repeats)] for cell in cells])
        return table, int(np.isnan(table[..., 0]).sum())

    over_count, lost = found((number, noise) for number in counts)
    over_noise, more = found((middle, value) for value in SCORE_NOISES)
    distances = np.abs(over_count - truth)
    usable = ~np.isnan(distances[..., 0])
    return Pipeline(
        name=name,
        counts=counts,
        errors=(distances**2).mean(-1),
        noises=SCORE_NOISES,
        by_noise=((over_noise - truth) ** 2).mean(-1),
        distances=distances[usable],
        gaps=loss(over_count, np.broadcast_to(fine, over_count.shape))[usable],
        refused=lost + more,
    )


def learned(
    number: int,
    score_noise: float,
    *,
    rule: Rule,
    family: str | None,
    random: np.random.Generator,
) -> Curve | None:
    """F from n budgets of a noisy surface, by :func:`~pacdp.curve.choose` and ``fit``.

    None where the fit is not positive on all budgets, and so no curve.

    >>> random = np.random.default_rng(0)
    >>> curve = learned(6, 0.0, rule="plateau", family="power", random=random)
    >>> round(curve(1.0), 2)
    0.5
    """
    not_negative("score_noise", score_noise)
    budgets = np.geomspace(LOW, HIGH, int(count("number", number)))
    grid = np.array(BOUNDS)
    choices = []
    for epsilon in budgets:
        clean = -loss(grid, epsilon)
        scores = clean + score_noise * random.normal(size=(SEEDS, len(grid)))
        choices.append(select_threshold(scores, grid, rule=rule))
    try:
        found = fit_curve_families(
            budgets,
            [choice.bound for choice in choices],
            spreads=[choice.spread for choice in choices],
            family=family,
        )
    except InputError:
        return None
    return found.curve
