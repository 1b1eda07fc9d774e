"""Exact draws of a Gaussian rounded to whole numbers, the noise on a public grid.

A value on a grid plus noise rounded to that grid is the rounding of the value plus real Gaussian
noise. If the rounded noise has exactly the distribution of a rounded real Gaussian, a release is
post-processing of the real Gaussian mechanism and has the same guarantee.

:func:`sample_rounded_gaussian` has that distribution, given uniform random bits: the total
variation distance is zero. Each magnitude is −Φ⁻¹(p) for a uniform tail probability p in (0, ½), of
which as many binary digits are drawn as the rounding needs. 63 digits confine p to an interval.
Three stages, each slower and more precise than the one before, check whether the whole interval
rounds to the same number; if the third cannot decide, it draws 64 more digits and tries again.

1. SciPy's Φ⁻¹ in float64 is within ``GUARD`` of every value of the interval.
   ``tests/clipping/prove_ndtri.py`` proves this, with a factor of four to spare.
2. One Newton step with Φ in double-double arithmetic corrects the first. It uses the first
   only as a starting point, and checks that the step is small.
3. mpmath compares the interval with Φ at the borders of the cell, with 64 guard bits.

How long a draw takes depends slightly on its value, so timing single draws reveals a little.
"""

import os
from collections.abc import Callable
from functools import cache

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pacdp.errors import InputError

FloatArray = NDArray[np.float64]
WordArray = NDArray[np.uint64]
Entropy = Callable[[int], bytes]

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**46
# With at least this many units of 2^-64 as tail probability, ``ndtri`` is within the guard of every
# value of the interval. Below, the intervals are too wide for one constant: one draw in 65536.
NEAR = 2**47
GUARD = 2.0**-45
# The arrays of a chunk fit into the cache of a core.
_CHUNK = 2**15
_MAGNITUDE = np.uint64(2**63 - 1)


def sample_rounded_gaussian(
    count: int, scale: float, *, entropy: Entropy = os.urandom
) -> FloatArray:
    """Draw ``count`` independent values of round(scale·Z), Z standard normal, exactly.

    ``entropy`` returns as many uniformly random bytes as requested: eight for each draw, and eight
    more, one draw at a time, where those leave the rounding undecided.

    >>> sample_rounded_gaussian(3, 1000.0).shape
    (3,)
    """
    if not (SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise InputError(f"scale = {scale}: must be a number from 2^-20 to 2^46")
    if count < 0:
        raise InputError(f"count = {count}: must be a whole number >= 0")
    _check_ndtri()
    draws = np.empty(count, dtype=np.float64)
    for start in range(0, count, _CHUNK):
        _fill(draws[start : start + _CHUNK], float(scale), entropy)
    return draws


def _fill(out: FloatArray, scale: float, entropy: Entropy) -> None:
    """Draw one chunk: the first stage for all, the others where it is undecided."""
    words = np.frombuffer(entropy(8 * out.size), dtype="<u8", count=out.size)
    words = words.astype(np.uint64, copy=False)
    tails = words & _MAGNITUDE
    products = _middles(tails)
    ndtri(products, out=products)
    products *= -scale
    np.rint(products, out=out)
    # Below 2^52 this difference is exact.
    products -= out
    np.abs(products, out=products)
    doubtful = np.flatnonzero((products >= 0.5 - scale * GUARD) | (tails < NEAR))
    if doubtful.size:
        out[doubtful] = _decide(tails[doubtful], scale, entropy)
    # The first of the 64 bits is the sign, for a float as for the word.
    np.copysign(out, words.view(np.float64), out=out)
    # Turns -0.0 into 0.0.
    out += 0.0


def _middles(tails: WordArray) -> FloatArray:
    """Compute the middle of each interval of tail probabilities, rounded twice."""
    # Signed integers are faster to convert, and 63 bits fit.
    middles = tails.view(np.int64).astype(np.float64)
    middles += 0.5
    middles *= 2.0**-64
    return middles


# The second stage.

# Q(x) = Φ(-x) is expanded at the multiples of 1/32, up to the tail probability 2^-65.
_STEPS, _ROWS = 32, 32 * 10
# Of the coefficients of an expansion, this many are double-double; the others matter less.
_DOUBLED, _TERMS = 6, 16
# The Newton step is trusted if it is this small, and the intervals this narrow.
_LARGEST_STEP, _NARROW = 2.0**-45, 2**10


def _decide(tails: WordArray, scale: float, entropy: Entropy) -> FloatArray:
    """Round scale·(-Φ⁻¹) of the intervals (tails, tails + 1)·2^-64 by stages two and three."""
    starts = -ndtri(_middles(tails))
    steps, densities = _newton(tails, starts)
    high, low = _multiply(starts, *_split(starts), np.full_like(starts, scale))
    rounded = np.rint(high)
    rest = (high - rounded) + (low + scale * steps)
    further = np.rint(rest)
    rounded += further
    rest -= further
    # Half the width of an interval is 2^-65; the rest covers the error of Q, and that of this
    # arithmetic is below 2^-38. See docs/numerics.md.
    certain = np.abs(rest) < 0.5 - 2.0**-38 - scale * 2.0**-64 / densities
    certain &= (np.abs(steps) <= _LARGEST_STEP) & (tails >= _NARROW)
    for index in np.flatnonzero(~certain):
        rounded[index] = _decide_exactly(int(tails[index]), scale, entropy)
    return rounded


def _newton(tails: WordArray, starts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute the steps from the starts to -Φ⁻¹ of the middles, and the densities at the starts."""
    table = _expansions()
    rows = np.rint(starts * _STEPS).astype(np.intp)
    offsets = starts - rows / _STEPS
    parts = _split(offsets)
    single = table[2 * _DOUBLED :, rows]
    rest = single[-1]
    for coefficient in single[-2::-1]:
        rest = rest * offsets + coefficient
    double = table[: 2 * _DOUBLED, rows]
    high, low = _add(double[-2], rest * offsets, double[-1])
    for coefficient, remainder in zip(double[-4::-2], double[-3::-2], strict=True):
        product, error = _multiply(offsets, *parts, high)
        error += low * offsets
        error += remainder
        high, low = _add(coefficient, product, error)
    # The middles without rounding, as the sum of two floats.
    upper = (tails >> np.uint64(32)).astype(np.float64) * 2.0**-32
    lower = ((tails & np.uint64(2**32 - 1)).astype(np.float64) + 0.5) * 2.0**-64
    middle = upper + lower
    surplus = (high - middle) + (low - (lower - (middle - upper)))
    densities = np.exp(-0.5 * starts * starts) / np.sqrt(2 * np.pi)
    return surplus / densities, densities


def _split(value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split a value into two floats of half the digits (Veltkamp)."""
    shifted = value * (2.0**27 + 1)
    high = shifted - (shifted - value)
    return high, value - high


def _multiply(
    left: FloatArray, high: FloatArray, low: FloatArray, right: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute a product and its rounding error; ``high`` and ``low`` split ``left`` (Dekker)."""
    product = left * right
    right_high, right_low = _split(right)
    error = high * right_high
    error -= product
    error += high * right_low
    error += low * right_high
    error += low * right_low
    return product, error


def _add(left: FloatArray, right: FloatArray, small: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Add three numbers in double-double, the third much smaller than the others (Knuth)."""
    total = left + right
    share = total - left
    error = (left - (total - share)) + (right - share)
    error += small
    high = total + error
    return high, error - (high - total)


@cache
def _expansions() -> FloatArray:
    """Compute Taylor coefficients of Q at the multiples of 1/32, a column for each.

    The first coefficients have two rows, for their high and low parts.
    """
    context = mpmath.MPContext()
    context.prec = 200
    table = np.empty((_DOUBLED + _TERMS, _ROWS))
    for column in range(_ROWS):
        x = context.mpf(column) / _STEPS
        # The n-th derivative of Q is (-1)^n·He_{n-1}(x)·φ(x), He the Hermite polynomials.
        density = context.exp(-x * x / 2) / context.sqrt(2 * context.pi)
        coefficients = [context.erfc(x / context.sqrt(2)) / 2]
        before, hermite, factor = context.zero, context.one, -density
        for order in range(1, _TERMS):
            coefficients.append(factor * hermite)
            before, hermite = hermite, x * hermite - (order - 1) * before
            factor /= -(order + 1)
        for order, coefficient in enumerate(coefficients[:_DOUBLED]):
            table[2 * order, column] = float(coefficient)
            table[2 * order + 1, column] = float(coefficient - float(coefficient))
        table[2 * _DOUBLED :, column] = [float(value) for value in coefficients[_DOUBLED:]]
    return table


@cache
def _check_ndtri() -> None:
    """Refuse to draw if this SciPy's ``ndtri`` is not the function that was proved accurate."""
    spread = np.linspace(NEAR, 2**63 - 1, 2048)
    tails = np.concatenate([spread, np.geomspace(NEAR, 2**63 - 1, 2048)]).astype(np.uint64)
    tails = np.minimum(tails, _MAGNITUDE)
    steps, _ = _newton(tails, -ndtri(_middles(tails)))
    worst = np.abs(steps).max()
    if not worst <= GUARD / 2:
        raise InputError(
            f"scipy.special.ndtri is off by {worst:.1e}, more than {GUARD / 2:.1e}: "
            "exact noise needs another version of SciPy"
        )


# The third stage.


def _decide_exactly(tail: int, scale: float, entropy: Entropy) -> int:
    """Round scale·(-Φ⁻¹) of the interval (tail, tail + 1)·2^-64, drawing digits until it can."""
    context = mpmath.MPContext()
    bits = 64
    while True:
        # Far below the width of the interval, and far above the error of mpmath.
        context.prec = bits + 64
        margin = context.ldexp(1, -32)
        cell = _guess(context, tail, bits, scale)
        upper = context.ldexp(_tail(context, (cell + context.mpf(0.5)) / scale), bits)
        lower = context.ldexp(_tail(context, (cell - context.mpf(0.5)) / scale), bits)
        # There is no border at zero: the middle cell reaches as far to the other side.
        if upper < tail - margin and (cell == 0 or tail + 1 + margin < lower):
            return cell
        tail = tail << 64 | int.from_bytes(entropy(8), "little")
        bits += 64


def _tail(context: mpmath.MPContext, x: mpmath.mpf) -> mpmath.mpf:
    """Compute Q(x)."""
    return context.erfc(x / context.sqrt(2)) / 2


def _guess(context: mpmath.MPContext, tail: int, bits: int, scale: float) -> int:
    """Compute the cell of the middle of the interval; the caller must check it."""
    middle = context.ldexp(2 * tail + 1, -bits - 1)
    # Right of the solution; since log Q is concave, Newton's method converges from there.
    x = context.sqrt(-2 * context.log(middle))
    step = context.inf
    while abs(step) > context.ldexp(1, -bits):
        value = _tail(context, x)
        density = context.exp(-x * x / 2) / context.sqrt(2 * context.pi)
        step = context.log(value / middle) * value / density
        x += step
    return int(context.nint(x * scale))
