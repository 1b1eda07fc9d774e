"""How an error grows with a setting: slopes in log-log, and what they say of a stated rate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.validation import FloatArray, positive

# Draws of the bootstrap over repeats.
_DRAWS = 200
# A measured slope this near to a stated one, beside three standard errors, is the stated one: no
# rate is exact over a finite range.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Slope:
    """error ~ x^value."""

    value: float
    error: float
    """Standard error, from drawing repeats again."""
    constant: float
    """ln of the error at x = 1."""

    def at(self, x: ArrayLike) -> FloatArray:
        """The fitted line."""
        return np.asarray(np.exp(self.constant) * np.asarray(x, float) ** self.value)


def measure(x: ArrayLike, errors: ArrayLike) -> Slope:
    """The slope of mean errors (cells, repeats) over x (cells), all in logarithms.

    >>> found = measure([1, 2, 4], [[3.0, 3.1], [12.0, 12.2], [48.0, 49.0]])
    >>> round(found.value, 1), found.error < 0.1
    (2.0, True)
    """
    logs, table = np.log(positive("x", x)), np.asarray(errors, float)
    if logs.ndim != 1 or len(logs) < 3 or table.ndim != 2 or len(table) != len(logs):
        raise InputError(
            f"errors: have shape {table.shape}, must be (cells, repeats) of at least three cells"
        )
    mean = table.mean(1)
    if not np.all(mean > 0):
        raise InputError(f"errors: have a mean of {mean.min():.3g}, must be > 0 in every cell")
    slope, constant = np.polyfit(logs, np.log(mean), 1)
    random = np.random.default_rng(0)
    picked = random.integers(table.shape[1], size=(_DRAWS, table.shape[1]))
    drawn = table[:, picked].mean(-1)
    # A draw whose mean is not positive has no logarithm; where there are many, the rest would lie.
    usable = np.all(drawn > 0, axis=0)
    if usable.mean() < 0.9:
        return Slope(float(slope), float("inf"), float(constant))
    again = np.polyfit(logs, np.log(drawn[:, usable]), 1)[0]
    return Slope(float(slope), float(again.std(ddof=1)), float(constant))


def verdict(found: Slope, stated: float) -> str:
    """Whether an error that grows as found is within O(x^stated), as x grows.

    A steeper fall than stated leaves a bound true but loose; a steeper rise breaks it.

    >>> verdict(Slope(2.0, 0.01, 0.0), 1.0), verdict(Slope(-1.0, 0.01, 0.0), -0.5)
    ('no', 'loose')
    """
    room = TOLERANCE + 3 * found.error
    if found.value > stated + room:
        return "no"
    return "yes" if found.value >= stated - room else "loose"
