"""From the bounds that single budgets want to one curve F(ε).

Three families are fitted and compared by what each says of a budget it did not see. A fit that is
not positive and finite on its whole domain, as the paper's own quadratic for MNIST, is reported
with the reason and never chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError
from scipy.optimize import isotonic_regression, lsq_linear
from scipy.stats import iqr, theilslopes

from pacdp.curve.curve import Curve
from pacdp.errors import InputError
from pacdp.validation import FloatArray, member, positive, together

FAMILIES = ("quadratic", "power", "piecewise")
# The least error of ln C that a choice is believed to have.
_LEAST_SPREAD = 0.02


# Budgets, bounds, and how much each counts.
_Points = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Fit:
    """One family's fit, or why there is none."""

    family: str
    curve: Curve | None
    r_squared: float | None
    """Of C, as the paper gives it."""
    left_out: float | None
    """Root mean square error of ln C at budgets that were left out of the fit."""
    refused: str = ""


@dataclass(frozen=True)
class Fitted:
    """The chosen curve, and what it was chosen from."""

    curve: Curve
    fits: tuple[Fit, ...]
    outliers: tuple[int, ...]
    """Which budgets were left out of all fits."""


def fit(
    budgets: ArrayLike,
    bounds: ArrayLike,
    *,
    spreads: ArrayLike = 0.0,
    family: str | None = None,
    monotone: bool = True,
) -> Fitted:
    """F(ε) through pairs of budget and bound, by the family that predicts left-out budgets best.

    ``spreads`` are the standard errors of ln C. ``monotone`` keeps quadratics and powers from
    falling; the piecewise family never falls.

    >>> found = fit([0.01, 0.1, 1.0, 10.0], [0.1, 0.2, 0.4, 0.8])
    >>> found.curve.family, [round(value, 3) for value in found.curve.coefficients]
    ('power', [0.4, 0.301])
    """
    epsilon, bound, spread = together(
        budgets=positive("budgets", budgets),
        bounds=positive("bounds", bounds),
        spreads=np.asarray(spreads, float),
    )
    if family is not None:
        member("family", family, FAMILIES)
    if epsilon.ndim != 1 or len(epsilon) < 4 or np.any(np.diff(epsilon) <= 0):
        raise InputError("budgets: must be at least four, rising")
    outliers = _outliers(epsilon, bound)
    kept = np.setdiff1d(np.arange(len(epsilon)), outliers)
    weights = 1 / (spread**2 + _LEAST_SPREAD**2)
    domain = (float(epsilon[0]), float(epsilon[-1]))
    points = epsilon[kept], bound[kept], weights[kept]
    fits = tuple(_fit_one(name, points, domain, monotone) for name in FAMILIES)
    usable = [one for one in fits if one.curve is not None and family in (None, one.family)]
    if not usable:
        reasons = "; ".join(f"{one.family}: {one.refused}" for one in fits if one.curve is None)
        raise InputError(f"family = {family}: cannot be used ({reasons})")
    best = min(usable, key=lambda one: one.left_out if one.left_out is not None else np.inf)
    assert best.curve is not None
    return Fitted(curve=best.curve, fits=fits, outliers=tuple(int(n) for n in outliers))


def _fit_one(family: str, points: _Points, domain: tuple[float, float], monotone: bool) -> Fit:
    try:
        curve = _curve(family, points, domain, monotone)
    except ValidationError as error:
        return Fit(family, None, None, None, str(error.errors()[0]["msg"]))
    epsilon, bound, _ = points
    said = np.array([curve(value) for value in epsilon])
    total = float(((bound - bound.mean()) ** 2).sum())
    return Fit(
        family=family,
        curve=curve,
        r_squared=1 - float(((bound - said) ** 2).sum()) / total if total > 0 else None,
        left_out=_left_out(family, points, domain, monotone),
    )


def _curve(family: str, points: _Points, domain: tuple[float, float], monotone: bool) -> Curve:
    coefficients = _COEFFICIENTS[family](points, domain, monotone)
    return Curve.model_validate({"family": family, "coefficients": coefficients, "domain": domain})


def _left_out(
    family: str, points: _Points, domain: tuple[float, float], monotone: bool
) -> float | None:
    """What the family says of each budget when that one is left out; None where it says nothing."""
    epsilon, bound, weights = points
    errors = []
    for number in range(len(epsilon)):
        rest = np.arange(len(epsilon)) != number
        try:
            curve = _curve(family, (epsilon[rest], bound[rest], weights[rest]), domain, monotone)
        except ValidationError:
            # A family that breaks when a point is missing predicts nothing there.
            return None
        errors.append(float(np.log(curve(float(epsilon[number])) / bound[number])))
    return float(np.sqrt(np.mean(np.square(errors))))


def _quadratic(points: _Points, domain: tuple[float, float], monotone: bool) -> tuple[float, ...]:
    """αε² + βε + γ by least squares, as in the paper."""
    epsilon, bound, _ = points
    if not monotone:
        alpha, beta, gamma = np.polyfit(epsilon, bound, 2)
        return float(alpha), float(beta), float(gamma)
    # A quadratic rises where its slope is not negative at either end; in terms of the two slopes
    # and the value at the lower end, that is a bound on the unknowns.
    low, high = domain
    along = epsilon - low
    bent = along**2 / (2 * (high - low))
    design = np.stack([np.ones_like(along), along - bent, bent], axis=1)
    start, first, last = lsq_linear(
        design, bound, bounds=([-np.inf, 0, 0], np.inf), method="bvls", tol=1e-14
    ).x
    alpha = (last - first) / (2 * (high - low))
    beta = first - 2 * alpha * low
    return float(alpha), float(beta), float(start - alpha * low**2 - beta * low)


def _power(points: _Points, domain: tuple[float, float], monotone: bool) -> tuple[float, ...]:
    """a·ε^b: a line in ln ε and ln C, each budget weighed by how sure its bound is."""
    epsilon, bound, weights = points
    exponent, start = np.polyfit(np.log(epsilon), np.log(bound), 1, w=np.sqrt(weights))
    if monotone and exponent < 0:
        exponent, start = 0.0, np.average(np.log(bound), weights=weights)
    return float(np.exp(start)), float(exponent)


def _piecewise(points: _Points, domain: tuple[float, float], monotone: bool) -> tuple[float, ...]:
    """Knots that never fall: isotonic regression of ln C, weighed likewise."""
    epsilon, bound, weights = points
    rising = np.exp(isotonic_regression(np.log(bound), weights=weights).x)
    return tuple(float(value) for pair in zip(epsilon, rising, strict=True) for value in pair)


_COEFFICIENTS: dict[str, Callable[[_Points, tuple[float, float], bool], tuple[float, ...]]] = {
    "quadratic": _quadratic,
    "power": _power,
    "piecewise": _piecewise,
}


def _outliers(epsilon: FloatArray, bound: FloatArray) -> Sequence[int]:
    """Budgets whose bound lies off the others' line by more than 1.5 interquartile ranges.

    Off the line and not off the middle: bounds rise with the budget, and the first and last of them
    are no outliers. The line is a median of slopes, which a few of them cannot bend.
    """
    if len(epsilon) < 6:
        return []
    slope, start, *_ = theilslopes(np.log(bound), np.log(epsilon))
    off = np.log(bound) - start - slope * np.log(epsilon)
    low, high = np.quantile(off, [0.25, 0.75])
    reach = 1.5 * max(float(iqr(off)), _LEAST_SPREAD)
    found = np.flatnonzero((off < low - reach) | (off > high + reach))
    # A curve through what is left must have enough to stand on.
    return found.tolist() if len(epsilon) - len(found) >= 4 else []
