"""Theorem 5 on a synthetic response surface whose C*(ε) is known.

The theorem says E|Ĉ − C*|² ≤ σ²/n + η². Least squares with k coefficients has the variance k·σ²/n,
so the theorem lacks the factor k. It bounds the utility gap by L·|Ĉ − C*|; at a smooth optimum the
gap is quadratic in this distance, and the bound is loose.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pacdp.curve import Curve, fit_curve_families, select_bounds
from pacdp.curve.evidence import Rule
from pacdp.errors import InputError
from pacdp.paper.theory.slopes import Slope, fit_slope
from pacdp.validation import FloatArray, require_count, require_nonnegative

LOW, HIGH = 0.05, 10.0
COUNTS = (6, 12, 24, 48)
PIPELINE_COUNTS = (4, 6, 9, 13)
SIGMAS = (0.02, 0.04, 0.08, 0.16)
SCORE_NOISES = (0.0, 0.01, 0.03, 0.1)
SEEDS = 3
BOUNDS = np.geomspace(0.02, 20, 13)
# Decrease of the score per (ln C − ln C*)².
CURVATURE = 0.05


def true_bound(epsilon: FloatArray) -> FloatArray:
    """Return C*(ε) of the synthetic surface: a power, which no quadratic in ε can represent.

    >>> float(true_bound(np.array(1.0)))
    0.5
    """
    return np.asarray(0.5 * np.asarray(epsilon) ** 0.4)


def utility_gap(bounds: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return the loss of utility at clipping bounds: smooth in ln C, and zero at C*.

    >>> float(utility_gap(true_bound(np.array(2.0)), np.array(2.0)))
    0.0
    """
    return np.asarray(CURVATURE * np.log(np.asarray(bounds) / true_bound(epsilon)) ** 2)


@dataclass(frozen=True, eq=False)
class Regression:
    """E|Ĉ − C*|² of least squares through noisy C_i, for all SIGMAS and COUNTS."""

    errors: FloatArray
    """(sigmas, counts, repeats)."""
    misfit: FloatArray
    """η² for each count: the error without noise."""

    @property
    def variance(self) -> FloatArray:
        """Return the error that noise adds: (sigmas, counts, repeats)."""
        return np.asarray(self.errors - self.misfit[None, :, None])

    @property
    def factor(self) -> float:
        """Return the noise part over σ²/n, which is at most one according to the theorem."""
        unit = np.square(SIGMAS)[:, None] / np.array(COUNTS)
        return float((self.variance.mean(-1) / unit).mean())

    @property
    def slope(self) -> Slope:
        """Return the slope of the noise part over n, at the largest σ."""
        return fit_slope(COUNTS, self.variance[-1])


def measure_regression(*, repeats: int = 400, degree: int = 2, seed: int = 0) -> Regression:
    """Measure the theorem's model: independent errors of variance σ² on each C_i, a polynomial.

    Budgets are evenly spaced, and ε is uniform over the same range.

    >>> 2 < measure_regression(repeats=50).factor < 4
    True
    """
    random = np.random.default_rng(seed)
    fine = np.linspace(LOW, HIGH, 400)
    errors = np.empty((len(SIGMAS), len(COUNTS), int(require_count("repeats", repeats))))
    misfit = np.empty(len(COUNTS))
    for column, number in enumerate(COUNTS):
        # The centres of equal intervals represent a uniform ε.
        budgets = LOW + (HIGH - LOW) * (np.arange(number) + 0.5) / number
        predict = np.vander(fine, degree + 1) @ np.linalg.pinv(np.vander(budgets, degree + 1))
        clean = predict @ true_bound(budgets)
        misfit[column] = np.mean((clean - true_bound(fine)) ** 2)
        noise = random.normal(size=(number, repeats))
        for row, sigma in enumerate(SIGMAS):
            predicted = clean[:, None] + sigma * (predict @ noise)
            errors[row, column] = ((predicted - true_bound(fine)[:, None]) ** 2).mean(0)
    return Regression(errors, misfit)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """E|Ĉ − C*|² of a whole offline phase: scores, selection and fit."""

    name: str
    counts: tuple[int, ...]
    errors: FloatArray
    """(counts, repeats), at one noise level of the scores."""
    errors_by_noise: FloatArray
    """(SCORE_NOISES, repeats), at one number of budgets."""
    distances: FloatArray
    """|Ĉ − C*| of many fits at many budgets: (fits, budgets)."""
    gaps: FloatArray
    """The utility gap of each of them."""

    @property
    def gap_slope(self) -> float:
        """Return the slope of the gap over the distance in log-log: the median over budgets."""
        logs = np.log(np.maximum(self.distances, 1e-12)), np.log(np.maximum(self.gaps, 1e-24))
        x, y = (table - table.mean(0) for table in logs)
        return float(np.median((x * y).sum(0) / (x**2).sum(0)))


def measure_pipelines(
    *, repeats: int = 12, counts: Sequence[int] = PIPELINE_COUNTS, seed: int = 0
) -> list[Pipeline]:
    """Measure the paper's pipeline and the default of :mod:`pacdp.curve`.

    >>> [pipeline.name for pipeline in measure_pipelines(repeats=1, counts=[4, 5])]
    ['argmax, quadratic', 'plateau, best family']
    """
    return [
        _measure_pipeline("argmax, quadratic", "argmax", "quadratic", repeats, tuple(counts), seed),
        _measure_pipeline("plateau, best family", "plateau", None, repeats, tuple(counts), seed),
    ]


def _measure_pipeline(
    name: str, rule: Rule, family: str | None, repeats: int, counts: tuple[int, ...], seed: int
) -> Pipeline:
    fine = np.geomspace(LOW, HIGH, 60)
    random = np.random.default_rng(seed)

    def fit(number: int, noise: float) -> list[float]:
        """Return Ĉ at the fine budgets; not a number if the fit was refused."""
        curve = fit_noisy_surface(number, noise, rule=rule, family=family, random=random)
        return [math.nan if curve is None else curve(float(epsilon)) for epsilon in fine]

    noise, number = SCORE_NOISES[2], counts[len(counts) // 2]
    by_count = np.array([[fit(n, noise) for _ in range(repeats)] for n in counts])
    by_noise = np.array([[fit(number, z) for _ in range(repeats)] for z in SCORE_NOISES])
    distances = np.abs(by_count - true_bound(fine))
    errors, errors_by_noise = distances**2, (by_noise - true_bound(fine)) ** 2
    usable, gaps = ~np.isnan(distances[..., 0]), utility_gap(by_count, fine)
    return Pipeline(
        *(name, counts, errors.mean(-1), errors_by_noise.mean(-1)),
        *(distances[usable], gaps[usable]),
    )


def fit_noisy_surface(
    number: int, score_noise: float, *, rule: Rule, family: str | None, random: np.random.Generator
) -> Curve | None:
    """Fit F to n budgets of a noisy surface; None if the fit is not positive at all budgets.

    >>> random = np.random.default_rng(0)
    >>> curve = fit_noisy_surface(6, 0.0, rule="plateau", family="power", random=random)
    >>> round(curve(1.0), 2)
    0.5
    """
    require_nonnegative("score_noise", score_noise)
    budgets = np.geomspace(LOW, HIGH, int(require_count("number", number)))
    noise = score_noise * random.normal(size=(number, SEEDS, len(BOUNDS)))
    scores = noise - utility_gap(BOUNDS, budgets[:, None, None])
    choices = select_bounds(scores.swapaxes(0, 1), BOUNDS, rule=rule)
    try:
        return fit_curve_families(
            budgets,
            [choice.bound for choice in choices],
            spreads=[choice.spread for choice in choices],
            family=family,
        ).curve
    except InputError:
        return None
