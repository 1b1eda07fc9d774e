"""Rounding-error bounds for clipped sums, and the public grid on which they are released.

The guarantee covers the numbers that a machine computes, not real numbers. Every bound below holds
for any order of summation, with or without fused multiply-add and on any instruction set: a sum of
k products in single precision is off by at most about k·u times the sum of their absolute values,
where u = 2⁻²⁴. ``docs/numerics.md`` states and proves the theorem, with the same constants.
"""

import math
from operator import attrgetter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping.rounded_gaussian import SMALLEST_SCALE
from pacdp.errors import InputError
from pacdp.validation import FloatArray, require_positive_number

# One model's number, or one for each model of a stack.
Bound = TypeVar("Bound", float, Tensor)
Sensitivity = TypeVar("Sensitivity", float, FloatArray)

# Unit roundoff: half the relative distance between neighbouring numbers.
UNIT_SINGLE, UNIT_DOUBLE = 2.0**-24, 2.0**-53
# How many examples are summed in single precision; block sums are added in double precision.
BLOCK = 128
# How many numbers one norm covers; longer vectors take norms of norms, to limit the error.
CHUNK = 1024
# Relative error of a clipped gradient's norm: products of two norms of norms, and the clip factor.
NORM_ERROR = 2.0**-12
# How much a norm, and a square, can lose where the square of one number underflows.
LOST_NORM, LOST_SQUARE = 2.0**-62, 2.0**-124
# How far rounding to the grid can move a sum, relative to its sensitivity.
GRID_ERROR = 2.0**-10
# How much further one example can move a sum because the sum is rounded, relative to C.
SUM_ERROR = 2.0**-8
# Clipping bounds for which underflow is covered by the bounds above.
SMALLEST_BOUND, LARGEST_BOUND = 1e-12, 1e12
# In double precision, whole numbers of at most this size are added exactly.
LARGEST_MULTIPLE = 2.0**51
# Gaussian noise exceeds this many standard deviations with a probability below 1e-890.
TAIL = 64.0


def check_clipping_bound(name: str, value: float) -> float:
    """Return the clipping bound if it lies in the range for which rounding errors are bounded.

    >>> check_clipping_bound("clipping_bound", 0.5)
    0.5
    """
    bound = require_positive_number(name, value)
    if not SMALLEST_BOUND <= bound <= LARGEST_BOUND:
        raise InputError(
            f"{name} = {bound:g}: must be a number from {SMALLEST_BOUND:g} to {LARGEST_BOUND:g}"
        )
    return bound


def refuse_reduced_precision() -> None:
    """Refuse modes in which products of float32 numbers are rounded to fewer bits than assumed.

    >>> refuse_reduced_precision()
    """
    reason = "the bound on rounding errors holds only for full single precision"
    settings = ["mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision"]
    if torch.cuda.is_available():
        settings += ["cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision"]
    for name in settings:
        value = attrgetter(name)(torch.backends)
        if value not in ("none", "ieee"):
            raise InputError(f"torch.backends.{name} = {value}: must be ieee; {reason}")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(f"torch.autocast: must be off; {reason}")


def sum_error(terms: float) -> float:
    """Bound the relative error γ of a single-precision sum of this many products, in any order.

    >>> sum_error(128) < 128.01 * UNIT_SINGLE
    True
    """
    return terms * UNIT_SINGLE / (1 - terms * UNIT_SINGLE)


def examples_per_sum(examples: int, positions: int) -> int:
    """Choose how many examples to sum at once if each is a sum over positions; 0 if none can be.

    A power of two, so that these groups are nested in blocks. It keeps gradients whose positions
    are mutually orthogonal within :data:`SUM_ERROR`.

    >>> examples_per_sum(128, 20), examples_per_sum(16, 16), examples_per_sum(128, 10_000)
    (2, 16, 0)
    """
    block = min(examples, BLOCK)
    most = SUM_ERROR / (2 * UNIT_SINGLE * block * positions**1.5)
    if most < 1:
        return 0
    largest = 1 << max(block - 1, 0).bit_length()
    return int(min(largest, 1 << int(math.log2(most))))


def shrink_bound(bound: Bound, examples: int, *, sums: int | None = None) -> Bound:
    """Compute the norm to clip to, so that no example moves the rounded sum by more than C.

    ``sums`` is the number of partial sums that are added in double
    precision, by default one for each block; the total is then rounded to the grid.

    >>> shrink_bound(1.0, 128)
    0.9948...
    """
    added = _adding_error(examples, sums)
    return bound * ((1 - GRID_ERROR) / (1 + NORM_ERROR + SUM_ERROR + added))


def _adding_error(examples: int, sums: int | None) -> float:
    """Bound ω, the error of adding partial sums in double precision, relative to the bound."""
    return 2 * ((-(-examples // BLOCK) if sums is None else sums) + 1) * examples * UNIT_DOUBLE


def smallest_ratio(ratios: FloatArray) -> FloatArray:
    """Return the smallest C_j/C > 0 of levels (..., levels)."""
    return np.asarray(np.where(ratios > 0, ratios, 1.0).min(-1))


def shrink_levels(
    bounds: FloatArray,
    ratios: FloatArray,
    examples: int,
    *,
    sums: int | None = None,
    positions: bool = False,
) -> FloatArray:
    """Compute the norms to clip to where examples have bounds of their own.

    ``ratios`` (..., levels) are C_j/C, and ``bounds`` (...) are C. Rounding errors depend on the
    largest bound, so they take a larger part of a smaller one: an example of level j moves the
    rounded sum by at most C_j if it is clipped to the norm that is returned. ``positions`` says
    whether gradients are sums over positions, whose error is bounded by :data:`SUM_ERROR`.
    Levels of equal bounds are treated as by :func:`shrink_bound`.

    >>> shrink_levels(np.array(1.0), np.array([0.1, 1.0]), 16).round(4)
    array([0.0998, 0.9996])
    """
    block = min(examples, BLOCK)
    # Twice the error of a block's sum, with a margin for what underflows.
    plain = 2.02 * block * sum_error(block) * (1 + NORM_ERROR)
    error = (SUM_ERROR if positions else plain) + _adding_error(examples, sums)
    grid = GRID_ERROR * smallest_ratio(ratios)[..., None]
    largest = (1 - grid) / (1 + NORM_ERROR + error)
    shares = (ratios - grid - error * largest) / (1 + NORM_ERROR)
    alike = (ratios == 1).all(-1, keepdims=True)
    shares = np.where(alike, shrink_bound(1.0, examples, sums=sums), np.maximum(shares, 0))
    return np.asarray(bounds)[..., None] * np.where(ratios > 0, shares, 0)


def norms(values: Tensor) -> Tensor:
    """Compute norms over the last dimension in single precision, at most 2⁻¹³ too small.

    They are infinite or NaN if one of the numbers is, or if a square overflows.

    >>> norms(torch.full((1, 3000), 2.0)).item()
    109.544...
    """
    # Squares may have underflowed.
    return raw_norms(values).add_(math.sqrt(values.shape[-1]) * LOST_NORM)


def raw_norms(values: Tensor) -> Tensor:
    """Compute :func:`norms` without the correction for underflow."""
    length = values.shape[-1]
    if length <= CHUNK:
        return torch.linalg.vector_norm(values, dim=-1)
    whole = length // CHUNK * CHUNK
    parts = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, CHUNK)), dim=-1)
    if whole < length:
        rest = torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)
        parts = torch.cat([parts, rest], -1)
    return raw_norms(parts)


def squared_norms(values: Tensor) -> Tensor:
    """Compute squares of :func:`norms` in double precision, where they neither overflow nor vanish.

    >>> squared_norms(torch.full((1, 3), 1e30)).item()
    inf
    """
    return norms(values).double().square_()


def clip_factors(norms: Tensor, bound: float | Tensor) -> Tensor:
    """Compute min(1, C/‖g‖) from norms; 0 where they are not finite.

    >>> clip_factors(torch.tensor([0.25, 4.0, torch.nan, torch.inf]), 1.0).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    # 1/∞ is 0 already.
    return norms.reciprocal().mul_(bound).clamp_(max=1).nan_to_num_(nan=0.0).float()


def zero_nonfinite(values: Tensor) -> Tensor:
    """Replace NaN and infinities, whose product with 0 is not 0, by zeros, in a copy.

    This is always a full pass, so that the time taken does not reveal whether there were any.
    """
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def zero_nonfinite_(values: Tensor) -> Tensor:
    """Replace NaN and infinities by zeros in place."""
    return values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def sum_products(left: Tensor, right: Tensor, block: int = BLOCK) -> Tensor:
    """Compute Σ_i left_i·right_iᵀ over rows: (..., B, O) and (..., B, I) to (..., O, I).

    Single precision within blocks of rows, double precision between them.

    >>> sum_products(torch.ones(300, 2), torch.ones(300, 3)).tolist()
    [[300.0, 300.0, 300.0], [300.0, 300.0, 300.0]]
    """
    rows = left.shape[-2]
    if rows <= block:
        return left.mT @ right
    whole = rows // block * block
    lefts, rights = (v[..., :whole, :].unflatten(-2, (-1, block)) for v in (left, right))
    total = (lefts.mT @ rights).sum(-3, dtype=torch.float64)
    if whole < rows:
        total += left[..., whole:, :].mT @ right[..., whole:, :]
    return total


def sum_rows(values: Tensor, block: int = BLOCK) -> Tensor:
    """Sum over rows, (..., B, O) to (..., O), with blocks as in :func:`sum_products`.

    >>> sum_rows(torch.ones(300, 2)).tolist()
    [300.0, 300.0]
    """
    rows = values.shape[-2]
    if rows <= block:
        return values.sum(-2)
    whole = rows // block * block
    total = values[..., :whole, :].unflatten(-2, (-1, block)).sum(-2).sum(-2, dtype=torch.float64)
    if whole < rows:
        total += values[..., whole:, :].sum(-2)
    return total


def grid_step(sensitivity: Sensitivity, coordinates: int) -> Sensitivity:
    """Compute the step g of the public grid: the largest power of two with g·√d ≤ 2⁻¹⁰·S.

    >>> grid_step(1.0, 1), grid_step(1.0, 2)
    (0.0009765625, 0.00048828125)
    """
    share = GRID_ERROR / math.sqrt(max(coordinates, 1))
    # x = m·2^e with m in [1/2, 1), so 2^(e-1) is the power of two at or below x.
    if isinstance(sensitivity, float):
        return math.ldexp(1.0, math.frexp(sensitivity * share)[1] - 1)
    return np.ldexp(1.0, np.frexp(sensitivity * share)[1] - 1)


def add_on_grid(
    clean: Tensor, noise: Tensor, *, step: float | Tensor, divisor: float | Tensor
) -> Tensor:
    """Compute (round(clean / g) + noise)·g / divisor in single precision, overwriting both tensors.

    This is the only place where noise is added. ``noise`` holds whole numbers: Gaussian noise in
    grid steps, rounded. A floating-point addition gives the exact sum, correctly rounded, so the
    result is a function of the exact sum of two whole numbers: a rounded Gaussian mechanism.

    >>> clean, noise = torch.tensor([0.3, -0.4]), torch.tensor([2.0, 0.0]).double()
    >>> add_on_grid(clean, noise, step=0.25, divisor=1.0).tolist()
    [0.75, -0.5]
    """
    whole, noise = quantize_(clean, step), noise.to(clean.device)
    total = noise.add_(whole) if noise.dtype == torch.float64 else whole.add_(noise)
    share = step / divisor
    return total.mul_(share.to(total) if isinstance(share, Tensor) else share).float()


def quantize_(clean: Tensor, step: float | Tensor) -> Tensor:
    """Convert a value to whole grid steps, clamped, in place.

    Multiplying a floating-point number by a power of two is exact, and so is rounding the result.
    Clamping moves no two values further apart, so the sensitivity does not grow.

    >>> quantize_(torch.tensor([0.3, -0.4, 1e30]), 0.25).tolist()
    [1.0, -2.0, 2251799813685248.0]
    """
    inverse = (1 / step).to(clean.dtype) if isinstance(step, Tensor) else 1 / step
    return clean.mul_(inverse).round_().clamp_(-LARGEST_MULTIPLE, LARGEST_MULTIPLE)


def check_noise(z: float, coordinates: int) -> float:
    """Return z, noise over sensitivity, if such noise can be drawn and added exactly.

    >>> check_noise(100.0, 11_000_000)
    100.0
    >>> check_noise(1e10, 11_000_000)
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: z = 1e+10: is too much noise for 11000000 coordinates ...
    """
    z = require_positive_number("z", z)
    # σ is z·S, and a grid step is at most 2⁻¹⁰·S/√d and more than half of that.
    unit = GRID_ERROR / math.sqrt(max(coordinates, 1))
    largest, smallest = LARGEST_MULTIPLE * unit / (2 * TAIL), SMALLEST_SCALE * unit
    if z >= largest:
        raise InputError(
            f"z = {z:g}: is too much noise for {coordinates} coordinates to be added exactly, must "
            f"be below {largest:.3g}; use a larger budget or fewer releases"
        )
    if z < smallest:
        raise InputError(
            f"z = {z:g}: is too little noise to be drawn on a grid, must be at least "
            f"{smallest:.3g}; use a smaller budget"
        )
    return z
