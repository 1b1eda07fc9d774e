"""Slopes of an error over a setting in log-log, and what they say about a stated rate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.validation import FloatArray, require_positive

_BOOTSTRAP_DRAWS = 200
# Slopes this close count as equal, beside three standard errors: no rate is exact over a finite
# range.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Slope:
    """A fitted power law: error ~ x^value."""

    value: float
    error: float
    """Standard error, from the bootstrap over repeats."""
    constant: float
    """ln of the error at x = 1."""

    def predict(self, x: ArrayLike) -> FloatArray:
        """Return the fitted errors at x."""
        return np.asarray(np.exp(self.constant) * np.asarray(x, float) ** self.value)


def fit_slope(x: ArrayLike, errors: ArrayLike) -> Slope:
    """Fit the slope of mean errors (cells, repeats) over x (cells), all in logarithms.

    >>> slope = fit_slope([1, 2, 4], [[3.0, 3.1], [12.0, 12.2], [48.0, 49.0]])
    >>> round(slope.value, 1), slope.error < 0.1
    (2.0, True)
    """
    logs, table = np.log(require_positive("x", x)), np.asarray(errors, float)
    if logs.ndim != 1 or len(logs) < 3 or table.ndim != 2 or len(table) != len(logs):
        raise InputError(
            f"errors: have shape {table.shape}, must be (cells, repeats) of at least three cells"
        )
    mean = table.mean(1)
    if not np.all(mean > 0):
        raise InputError(f"errors: have a mean of {mean.min():.3g}, must be > 0 in every cell")
    slope, constant = np.polyfit(logs, np.log(mean), 1)
    random = np.random.default_rng(0)
    columns = random.integers(table.shape[1], size=(_BOOTSTRAP_DRAWS, table.shape[1]))
    resampled = table[:, columns].mean(-1)
    # A mean that is not positive has no logarithm. With many of them, the others would be biased.
    usable = np.all(resampled > 0, axis=0)
    if usable.mean() < 0.9:
        return Slope(float(slope), float("inf"), float(constant))
    slopes = np.polyfit(logs, np.log(resampled[:, usable]), 1)[0]
    return Slope(float(slope), float(slopes.std(ddof=1)), float(constant))


def assess_slope(slope: Slope, stated: float) -> str:
    """Say whether an error with this slope is within O(x^stated), as x grows.

    A steeper decrease than stated leaves the bound true but loose; a steeper increase breaks it.

    >>> assess_slope(Slope(2.0, 0.01, 0.0), 1.0), assess_slope(Slope(-1.0, 0.01, 0.0), -0.5)
    ('no', 'loose')
    """
    margin = TOLERANCE + 3 * slope.error
    if slope.value > stated + margin:
        return "no"
    return "yes" if slope.value >= stated - margin else "loose"
