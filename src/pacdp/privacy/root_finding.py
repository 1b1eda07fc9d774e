"""Searches for noise and sampling rates, for accountants without an inverse.

Every answer was itself priced at no more than the target.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import elementwise

from pacdp.errors import InputError
from pacdp.validation import FloatArray

# How close the answer is to the optimum, relative in the quantity searched.
TOLERANCE = 1e-6
# Lower sampling rates, and noise outside this range, are of no practical use.
SMALLEST_RATE = 1e-9
SMALLEST_NOISE, LARGEST_NOISE = 1e-3, 1e8


def smallest_noise(cost: Callable[[float], float], target: float, guess: float) -> float:
    """Find the least z >= 1e-3 with ``cost(z)`` ≤ target, for a cost that falls with z.

    >>> round(smallest_noise(lambda z: 1 / z, 0.5, guess=1.0), 4)
    2.0
    """
    cost = cache(cost)
    safe = max(guess, SMALLEST_NOISE)
    while cost(safe) > target:
        safe *= 2
        if safe > LARGEST_NOISE:
            raise InputError(f"epsilon = {target:g}: no noise multiplier up to 1e8 reaches it")
    unsafe = safe
    while cost(unsafe) <= target:
        if unsafe == SMALLEST_NOISE:
            return unsafe
        safe, unsafe = unsafe, max(unsafe / 2, SMALLEST_NOISE)
    return _search_between(cost, target, safe, unsafe)


def largest_rate(
    cost: Callable[[float], float], target: float, *, guess: float | None = None
) -> float:
    """Find the largest q in (0, 1] with ``cost(q)`` ≤ target, for a cost that rises with q.

    A good ``guess`` saves most of the work; a bad one does no harm.

    >>> round(largest_rate(lambda q: 4 * q, 1.0), 4)
    0.25
    >>> round(largest_rate(lambda q: 4 * q, 1.0, guess=0.2), 4)
    0.25
    """
    cost = cache(cost)
    unsafe, safe = (1.0, 0.5) if guess is None else (min(1.01 * guess, 1.0), 0.999 * guess)
    while cost(unsafe) <= target:
        if unsafe == 1.0:
            return 1.0
        safe, unsafe = unsafe, min(2 * unsafe, 1.0)
    while cost(safe) > target:
        unsafe, safe = safe, safe / 2
        if safe < SMALLEST_RATE:
            raise InputError(
                f"epsilon = {target:g}: even a sampling rate of 1e-9 costs more at this noise"
            )
    return _search_between(cost, target, safe, unsafe)


def _search_between(
    cost: Callable[[float], float], target: float, safe: float, unsafe: float
) -> float:
    """Find the point closest to the crossing whose own cost is at most the target."""

    def excess(log_x: FloatArray) -> FloatArray:
        costs = [cost(float(np.exp(value))) - target for value in np.ravel(log_x)]
        return np.reshape(costs, np.shape(log_x))

    low, high = np.log(sorted((safe, unsafe)))
    tolerances = {"xatol": TOLERANCE, "xrtol": 0.0}
    root = elementwise.find_root(excess, (low, high), tolerances=tolerances)
    ends: list[ArrayLike] = [root.x, *root.bracket]
    within = [x for x in (float(np.exp(end)) for end in ends) if cost(x) <= target]
    # The closest of the safe points; rounding of exp(log) may have made the safe end unsafe.
    return min([safe, *within], key=lambda x: abs(np.log(x / unsafe)))
