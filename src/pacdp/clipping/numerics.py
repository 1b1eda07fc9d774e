"""Rounding-error bounds for clipped sums, and the public grid on which they are released.

The guarantee covers the numbers that a machine computes, not real numbers. Every bound
below holds for any order of summation, with or without fused multiply-add and on any instruction
set: a sum of k products in single precision is off by at most about k·u times the sum of their
absolute values, where u = 2⁻²⁴. ``docs/numerics.md`` states the theorem and proves it; constants
have the same names there.
"""

import math
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping.rounded_gaussian import SMALLEST_SCALE
from pacdp.errors import InputError
from pacdp.validation import FloatArray, positive_number

# Unit roundoff: half the relative distance between neighbouring numbers.
UNIT_SINGLE, UNIT_DOUBLE = 2.0**-24, 2.0**-53
# Examples that are summed in single precision. Block sums are added up in double precision.
BLOCK = 128
# Numbers in one norm. Longer vectors take norms of norms, so that the error hardly grows.
CHUNK = 1024
# Relative error of a clipped gradient's norm: products of two norms of norms, and the clip factor.
NORM_ERROR = 2.0**-12
# What one number can lose of a norm, and of a square, where its square underflows.
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
    """The clipping bound, if it lies in the range for which rounding errors are bounded.

    >>> check_clipping_bound("clipping_bound", 0.5)
    0.5
    """
    bound = positive_number(name, value)
    if not SMALLEST_BOUND <= bound <= LARGEST_BOUND:
        raise InputError(
            f"{name} = {bound:g}: must be a number from {SMALLEST_BOUND:g} to {LARGEST_BOUND:g}"
        )
    return bound


def refuse_reduced_precision() -> None:
    """Refuse modes in which products of float32 numbers are rounded to fewer bits than assumed.

    >>> refuse_reduced_precision()
    """
    modes: dict[str, Any] = {
        "torch.backends.mkldnn.matmul.fp32_precision": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        "torch.backends.mkldnn.conv.fp32_precision": torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    }
    if torch.cuda.is_available():
        modes["torch.backends.cuda.matmul.fp32_precision"] = torch.backends.cuda.matmul
        modes["torch.backends.cudnn.conv.fp32_precision"] = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    for name, backend in modes.items():
        if backend.fp32_precision not in ("none", "ieee"):
            raise InputError(
                f"{name} = {backend.fp32_precision}: must be ieee; the bound on rounding errors "
                "holds only for full single precision"
            )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(
            "torch.autocast: must be off; the bound on rounding errors holds only for full "
            "single precision"
        )


def sum_error(terms: float) -> float:
    """Relative error γ of a single-precision sum of this many products, in any order.

    >>> sum_error(128) < 128.01 * UNIT_SINGLE
    True
    """
    return terms * UNIT_SINGLE / (1 - terms * UNIT_SINGLE)


def examples_per_sum(examples: int, positions: int) -> int:
    """How many examples to sum at once if each is a sum over positions; 0 if not even one fits.

    A power of two, so that these groups are nested in blocks. Chosen such that gradients whose
    positions are mutually orthogonal stay within :data:`SUM_ERROR`.

    >>> examples_per_sum(128, 20), examples_per_sum(16, 16), examples_per_sum(128, 10_000)
    (2, 16, 0)
    """
    block = min(examples, BLOCK)
    most = SUM_ERROR / (2 * UNIT_SINGLE * block * positions**1.5)
    if most < 1:
        return 0
    largest = 1 << max(block - 1, 0).bit_length()
    return int(min(largest, 1 << int(math.log2(most))))


@overload
def shrink_bound(bound: float, examples: int, *, sums: int | None = None) -> float: ...
@overload
def shrink_bound(bound: Tensor, examples: int, *, sums: int | None = None) -> Tensor: ...
def shrink_bound(
    bound: float | Tensor, examples: int, *, sums: int | None = None
) -> float | Tensor:
    """The length to clip gradients to, so that none moves the sum, as rounded, by more than C.

    The same for every engine. ``sums`` is the number of partial sums that are added in double
    precision, by default one for each block; the total is then rounded to the grid.

    >>> shrink_bound(1.0, 128)
    0.9948...
    """
    added = 2 * ((-(-examples // BLOCK) if sums is None else sums) + 1) * examples * UNIT_DOUBLE
    return bound * ((1 - GRID_ERROR) / (1 + NORM_ERROR + SUM_ERROR + added))


def norms(values: Tensor) -> Tensor:
    """Length over the last dimension in single precision, at most 2⁻¹³ below the truth.

    Infinite or NaN if one of the numbers is, or if a square overflows.

    >>> norms(torch.full((1, 3000), 2.0)).item()
    109.544...
    """
    # Squares may have underflowed.
    return raw_norms(values).add_(math.sqrt(values.shape[-1]) * LOST_NORM)


def raw_norms(values: Tensor) -> Tensor:
    """As :func:`norms`, but without the correction for underflow."""
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
    """Squares of :func:`norms` in double precision, where they cannot overflow or vanish.

    >>> squared_norms(torch.full((1, 3), 1e30)).item()
    inf
    """
    return norms(values).double().square_()


def clip_factors(lengths: Tensor, bound: float | Tensor) -> Tensor:
    """min(1, C/‖g‖) from norms; 0 where they are not finite.

    >>> clip_factors(torch.tensor([0.25, 4.0, torch.nan, torch.inf]), 1.0).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    # 1/∞ is 0 already.
    return lengths.reciprocal().mul_(bound).clamp_(max=1).nan_to_num_(nan=0.0).float()


def zero_nonfinite(values: Tensor) -> Tensor:
    """A copy with NaN and infinities, whose product with 0 is not 0, replaced by zeros.

    Always a full pass, so that the time taken does not reveal whether there were any.
    """
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def zero_nonfinite_(values: Tensor) -> Tensor:
    """The same in place."""
    return values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def sum_products(left: Tensor, right: Tensor, block: int = BLOCK) -> Tensor:
    """Σ_i left_i·right_iᵀ over rows: (..., B, O) and (..., B, I) to (..., O, I).

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
    """The sum over rows, (..., B, O) to (..., O), with blocks as in :func:`sum_products`.

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


@overload
def grid_step(sensitivity: float, coordinates: int) -> float: ...
@overload
def grid_step(sensitivity: FloatArray, coordinates: int) -> FloatArray: ...
def grid_step(sensitivity: float | FloatArray, coordinates: int) -> float | FloatArray:
    """The step g of the public grid: the largest power of two with g·√d at most 2⁻¹⁰·S.

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
    """(round(clean / g) + noise)·g / divisor, in single precision. Both tensors are overwritten.

    The only place where noise is added. ``noise`` holds whole numbers: Gaussian noise in grid
    steps, rounded. An addition in floating point gives the exact sum, correctly rounded, so all
    that follows is a function of the exact sum of two whole numbers: a rounded Gaussian mechanism.

    >>> clean, noise = torch.tensor([0.3, -0.4]), torch.tensor([2.0, 0.0]).double()
    >>> add_on_grid(clean, noise, step=0.25, divisor=1.0).tolist()
    [0.75, -0.5]
    """
    whole, noise = quantize_(clean, step), noise.to(clean.device)
    total = noise.add_(whole) if noise.dtype == torch.float64 else whole.add_(noise)
    share = step / divisor
    return total.mul_(share.to(total) if isinstance(share, Tensor) else share).float()


def quantize_(clean: Tensor, step: float | Tensor) -> Tensor:
    """The value in whole grid steps, clamped, in place.

    Multiplying a floating-point number by a power of two is exact, and so is rounding the result.
    Clamping moves no two values further apart, so the sensitivity does not grow.

    >>> quantize_(torch.tensor([0.3, -0.4, 1e30]), 0.25).tolist()
    [1.0, -2.0, 2251799813685248.0]
    """
    inverse = (1 / step).to(clean.dtype) if isinstance(step, Tensor) else 1 / step
    return clean.mul_(inverse).round_().clamp_(-LARGEST_MULTIPLE, LARGEST_MULTIPLE)


def check_noise(z: float, coordinates: int) -> float:
    """z, noise over sensitivity, if such noise can be drawn and added exactly.

    >>> check_noise(100.0, 11_000_000)
    100.0
    >>> check_noise(1e10, 11_000_000)
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: z = 1e+10: is too much noise for 11000000 coordinates ...
    """
    z = positive_number("z", z)
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
