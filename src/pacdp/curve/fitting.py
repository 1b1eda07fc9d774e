"""Fitting one curve F(ε) to the clipping bounds selected for single budgets.

Three families are fitted and compared by leave-one-out cross-validation. A fit that is not positive
and finite on the whole domain is reported with the reason and never selected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError
from scipy.optimize import isotonic_regression, lsq_linear
from scipy.stats import iqr, theilslopes

from pacdp.curve.curve import Curve
from pacdp.curve.evidence import Family, FamilyFit
from pacdp.errors import InputError
from pacdp.validation import FloatArray, broadcast_together, require_member, require_positive

# Lower limit for the standard error of ln C, whatever the selection claims.
_MIN_SPREAD = 0.02


@dataclass(frozen=True)
class FamilyComparison:
    """The selected curve and the fits it was selected from."""

    curve: Curve
    families: dict[str, FamilyFit]
    outliers: tuple[int, ...]
    """Indices of the budgets that were excluded from all fits."""


def fit_curve_families(
    budgets: ArrayLike,
    bounds: ArrayLike,
    *,
    spreads: ArrayLike = 0.0,
    family: str | None = None,
    monotone: bool = True,
) -> FamilyComparison:
    """Fit every family to pairs of budget and bound, and select the one that predicts best.

    ``spreads`` are the standard errors of ln C. ``family`` selects a family by name. ``monotone``
    restricts quadratic and power curves to non-decreasing ones; piecewise curves always are.

    >>> fitted = fit_curve_families([0.01, 0.1, 1.0, 10.0], [0.1, 0.2, 0.4, 0.8])
    >>> fitted.curve.family, [round(value, 3) for value in fitted.curve.coefficients]
    ('power', [0.4, 0.301])
    """
    epsilon, bound, spread = broadcast_together(
        budgets=require_positive("budgets", budgets),
        bounds=require_positive("bounds", bounds),
        spreads=np.asarray(spreads, float),
    )
    if family is not None:
        require_member("family", family, get_args(Family))
    if epsilon.ndim != 1 or len(epsilon) < 4 or np.any(np.diff(epsilon) <= 0):
        raise InputError("budgets: must be at least four, rising")
    outliers = _find_outliers(epsilon, bound)
    domain = (float(epsilon[0]), float(epsilon[-1]))
    weights = 1 / (spread**2 + _MIN_SPREAD**2)
    points = _Points(epsilon, bound, weights, domain, monotone).without(outliers)
    fits = {name: _fit_family(name, points) for name in get_args(Family)}
    usable = {
        name: fit.coefficients
        for name, fit in fits.items()
        if fit.coefficients is not None and family in (None, name)
    }
    if not usable:
        reasons = "; ".join(f"{name}: {fit.refused}" for name, fit in fits.items() if fit.refused)
        raise InputError(f"family = {family}: cannot be used ({reasons})")
    # A family that cannot be cross-validated comes last.
    errors = {name: fits[name].left_out for name in usable}
    best = min(usable, key=lambda name: (errors[name] is None, errors[name]))
    curve = Curve(family=best, coefficients=usable[best], domain=domain)
    return FamilyComparison(curve=curve, families=fits, outliers=tuple(outliers))


@dataclass(frozen=True, eq=False)
class _Points:
    """The data that each family is fitted to."""

    epsilon: FloatArray
    bound: FloatArray
    weights: FloatArray
    domain: tuple[float, float]
    monotone: bool

    def without(self, indices: Sequence[int]) -> "_Points":
        kept = np.setdiff1d(np.arange(len(self.epsilon)), indices)
        return replace(
            self, epsilon=self.epsilon[kept], bound=self.bound[kept], weights=self.weights[kept]
        )

    def fit(self, family: Family) -> Curve:
        """Fit a curve; a :class:`ValidationError` says why the result is no valid curve."""
        coefficients = tuple(float(value) for value in _FITS[family](self))
        return Curve(family=family, coefficients=coefficients, domain=self.domain)


def _fit_family(family: Family, points: _Points) -> FamilyFit:
    try:
        curve = points.fit(family)
    except ValidationError as error:
        return FamilyFit(refused=str(error.errors()[0]["msg"]))
    residuals = points.bound - np.array([curve(epsilon) for epsilon in points.epsilon])
    total = float(((points.bound - points.bound.mean()) ** 2).sum())
    return FamilyFit(
        coefficients=curve.coefficients,
        r_squared=1 - float((residuals**2).sum()) / total if total > 0 else None,
        left_out=_cross_validate(family, points),
    )


def _cross_validate(family: Family, points: _Points) -> float | None:
    """Return the leave-one-out error of ln C; None if the family needs all of the points."""
    errors = []
    for index, (epsilon, bound) in enumerate(zip(points.epsilon, points.bound, strict=True)):
        try:
            curve = points.without([index]).fit(family)
        except ValidationError:
            return None
        errors.append(float(np.log(curve(float(epsilon)) / bound)))
    return float(np.sqrt(np.mean(np.square(errors))))


def _fit_quadratic(points: _Points) -> Sequence[float]:
    """Fit αε² + βε + γ by least squares, as in the paper."""
    if not points.monotone:
        return np.polyfit(points.epsilon, points.bound, 2).tolist()
    # A quadratic is non-decreasing if its slope is at least zero at both ends of the domain. In
    # terms of these two slopes and the value at the lower end, this is a bound on the unknowns.
    low, high = points.domain
    offset = points.epsilon - low
    curved = offset**2 / (2 * (high - low))
    design = np.stack([np.ones_like(offset), offset - curved, curved], axis=1)
    start, first, last = lsq_linear(
        design, points.bound, bounds=([-np.inf, 0, 0], np.inf), method="bvls", tol=1e-14
    ).x
    alpha = (last - first) / (2 * (high - low))
    beta = first - 2 * alpha * low
    return alpha, beta, start - alpha * low**2 - beta * low


def _fit_power(points: _Points) -> Sequence[float]:
    """Fit a·ε^b as a line in ln ε and ln C, weighted by the precision of each bound."""
    logs = np.log(points.bound)
    exponent, start = np.polyfit(np.log(points.epsilon), logs, 1, w=np.sqrt(points.weights))
    if points.monotone and exponent < 0:
        exponent, start = 0.0, np.average(logs, weights=points.weights)
    return np.exp(start), exponent


def _fit_piecewise(points: _Points) -> Sequence[float]:
    """Fit knots by isotonic regression of ln C, with the same weights."""
    rising = np.exp(isotonic_regression(np.log(points.bound), weights=points.weights).x)
    return np.stack([points.epsilon, rising], axis=1).ravel().tolist()


_FITS: dict[Family, Callable[[_Points], Sequence[float]]] = {
    "quadratic": _fit_quadratic,
    "power": _fit_power,
    "piecewise": _fit_piecewise,
}


def _find_outliers(epsilon: FloatArray, bound: FloatArray) -> list[int]:
    """Find budgets whose bound is more than 1.5 interquartile ranges away from a robust line.

    The distance is taken from a line in ln ε and ln C, because bounds rise with the budget and the
    first and last ones must not count as outliers. The line has the median of all slopes, which a
    few outliers cannot change.
    """
    if len(epsilon) < 6:
        return []
    slope, start, *_ = theilslopes(np.log(bound), np.log(epsilon))
    residuals = np.log(bound) - start - slope * np.log(epsilon)
    low, high = np.quantile(residuals, [0.25, 0.75])
    margin = 1.5 * max(float(iqr(residuals)), _MIN_SPREAD)
    outliers = np.flatnonzero((residuals < low - margin) | (residuals > high + margin)).tolist()
    # At least four points must remain for the fit.
    return outliers if len(epsilon) - len(outliers) >= 4 else []
