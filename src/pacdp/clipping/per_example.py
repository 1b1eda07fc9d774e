"""Per-example gradients of one parameter, kept in whatever form is cheapest.

A layer's weight gradient for one example is a sum over positions t (time steps, pixels) of outer
products g_t·a_tᵀ of what went in and the gradient of what came out. Three things are asked of it:
a bound on its norm per example, its sum over examples with given weights, and, where nothing
cheaper will do, the gradients themselves. The form decides how: the weighted sum is one matrix
product as large as that of ordinary training, and the norm needs either the gradients themselves or
only the inner products between positions, whichever moves less memory.

Shapes, order and number of operations depend on shapes alone, never on values: an example whose
gradient is not finite is given the weight 0 and goes through the same arithmetic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from pacdp.clipping.numerics import (
    BLOCK,
    LOST_SQUARE,
    UNIT_DOUBLE,
    UNIT_SINGLE,
    examples_per_sum,
    squared_norms,
    sum_error,
    sum_products,
    zero_nonfinite,
    zero_nonfinite_,
)

# A product of positions is preferred while it costs fewer multiplications than this for each number
# of the gradient that need not be written and read again.
MULTIPLICATIONS_PER_NUMBER = 64
# A convolution with more multiplications than this is worth a call of its own for each example.
WORTH_A_CALL = 5_000_000
# Numbers in a buffer that fits into a core's own cache.
BUFFER = 400_000


class Contribution(Protocol):
    """What one use of a parameter adds to each example's gradient. Everything is float32."""

    def squared_norms(self) -> Tensor:
        """Squared norm of each example's gradient, short by NORM_ERROR at most: (B,), float64."""

    def squared_rounding(self) -> Tensor | None:
        """(n·L)² of each example: n terms in a single-precision sum, L the sum of their lengths.

        None where gradients are summed as they are, so that L is the norm and n the block size.
        """

    def per_example(self) -> Tensor:
        """Each example's gradient: (B, *shape)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_i w_i·gradient_i: (*shape). Examples of weight 0 add zero, even if not finite."""


@dataclass(frozen=True)
class Rows:
    """Gradients that are small enough to be kept as they are."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        return squared_norms(self.gradients.flatten(1))

    def squared_rounding(self) -> None:
        return None

    def per_example(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = zero_nonfinite_(self.gradients.flatten(1))
        return sum_products(weights[:, None], flat).reshape(self.gradients.shape[1:])


@dataclass(frozen=True)
class Outer:
    """Σ_t g_t·a_tᵀ for inputs a: (B, T, I) and gradients g: (B, T, O); weight (O, I)."""

    inputs: Tensor
    gradients: Tensor

    def squared_norms(self) -> Tensor:
        if self._positions == 1:
            return squared_norms(self.inputs.flatten(1)) * squared_norms(self.gradients.flatten(1))
        if self._by_positions:
            return _norms_by_positions(
                self.inputs @ self.inputs.mT,
                self.gradients @ self.gradients.mT,
                *self._squares,
                sizes=(self.inputs.shape[2], self.gradients.shape[2]),
                roundings=self.inputs.shape[2] + self.gradients.shape[2],
            )
        return Rows(self._made).squared_norms()

    def squared_rounding(self) -> Tensor | None:
        if self._positions == 1 or not self._by_positions:
            return None
        return _squared_lengths(*self._squares) * (self._at_once * self._positions) ** 2

    def per_example(self) -> Tensor:
        return self._made

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_made" in self.__dict__:
            return Rows(self._made).weighted_sum(weights)
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None])
        inputs = zero_nonfinite(self.inputs)
        rows = BLOCK if self._positions == 1 else self._at_once * self._positions
        return sum_products(scaled.flatten(0, 1), inputs.flatten(0, 1), rows)

    @property
    def _positions(self) -> int:
        return self.inputs.shape[1]

    @property
    def _at_once(self) -> int:
        return examples_per_sum(len(self.inputs), self._positions)

    @property
    def _by_positions(self) -> bool:
        size_in, size_out = self.inputs.shape[2], self.gradients.shape[2]
        return self._at_once > 0 and _cheaper_by_positions(self._positions, size_in, size_out)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """‖a_t‖² and ‖g_t‖² of each position."""
        return squared_norms(self.inputs), squared_norms(self.gradients)

    @cached_property
    def _made(self) -> Tensor:
        return self.gradients.mT @ self.inputs


@dataclass(frozen=True)
class Convolution:
    """The weight of a Conv2d: outer products of unfolded patches and output gradients.

    ``inputs`` are padded already: (B, I, H, W); ``gradients``: (B, O, H′, W′).
    """

    inputs: Tensor
    gradients: Tensor
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def squared_norms(self) -> Tensor:
        if not self._by_positions:
            return Rows(self._made).squared_norms()
        gradients = self.gradients.flatten(2)
        return _norms_by_positions(
            self._patch_products,
            gradients.mT @ gradients,
            *self._squares,
            sizes=(math.prod(self._shape[1:]), self._shape[0]),
            roundings=self._patch_terms + self._shape[0],
        )

    def squared_rounding(self) -> Tensor | None:
        if not self._by_positions:
            return None
        return _squared_lengths(*self._squares) * (self._at_once * self._positions) ** 2

    def per_example(self) -> Tensor:
        return self._made if self._one_by_one else self._made.permute(0, 1, 4, 2, 3)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_made" in self.__dict__:
            total = Rows(self._made).weighted_sum(weights)
            return total if self._one_by_one else total.permute(0, 3, 1, 2)
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None, None])
        inputs = zero_nonfinite(self.inputs)
        parts = zip(inputs.split(self._at_once), scaled.split(self._at_once), strict=True)
        total = self._summed(*next(parts))
        for part in parts:
            total = total.double().add_(self._summed(*part))
        return total

    def _summed(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """The ordinary weight gradient, summed over examples."""
        return conv2d_weight(
            inputs,
            self._shape,
            gradients,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        channels = self.inputs.shape[1] // self.groups
        return (self.gradients.shape[1], channels, *self.kernel)

    @property
    def _positions(self) -> int:
        return self.gradients[0, 0].numel()

    @property
    def _at_once(self) -> int:
        return examples_per_sum(len(self.inputs), self._positions)

    @property
    def _by_positions(self) -> bool:
        out, size_in = self._shape[0], math.prod(self._shape[1:])
        fits = self.groups == 1 and self._at_once > 0
        return fits and _cheaper_by_positions(self._positions, size_in, out)

    @property
    def _one_by_one(self) -> bool:
        return math.prod(self._shape) * self._positions > WORTH_A_CALL

    @property
    def _patch_terms(self) -> int:
        """How many roundings a product goes through in an inner product of two patches."""
        return self._shape[1] + math.prod(self.kernel)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """‖a_t‖² and ‖g_t‖² of each position, with patches a_t."""
        patches = self._patch_products.diagonal(dim1=1, dim2=2).double()
        lost = math.prod(self._shape[1:]) * LOST_SQUARE
        patches = patches * (1 + 2 * sum_error(self._patch_terms)) + lost
        return patches, squared_norms(self.gradients.flatten(2).mT)

    @cached_property
    def _patch_products(self) -> Tensor:
        """Inner products of the patches at any two positions: (B, T, T).

        They are sums, over the places of the kernel, of inner products of single pixels, so no
        patch needs to be written out.
        """
        high, wide = self.gradients.shape[2:]
        pixels = self.inputs.flatten(2)
        products = (pixels.mT @ pixels).unflatten(2, self.inputs.shape[2:])
        products = products.unflatten(1, self.inputs.shape[2:])
        total = 0
        for row in range(0, self.kernel[0] * self.dilation[0], self.dilation[0]):
            rows = slice(row, row + (high - 1) * self.stride[0] + 1, self.stride[0])
            for column in range(0, self.kernel[1] * self.dilation[1], self.dilation[1]):
                columns = slice(column, column + (wide - 1) * self.stride[1] + 1, self.stride[1])
                total = total + products[:, rows, columns, rows, columns]
        assert isinstance(total, Tensor)
        return total.reshape(len(pixels), high * wide, high * wide)

    @cached_property
    def _made(self) -> Tensor:
        """(B, O, C, kh, kw) one by one, and with the channels last otherwise."""
        if self._one_by_one:
            made = self.inputs.new_empty(len(self.inputs), *self._shape)
            for example, inputs in enumerate(self.inputs):
                made[example] = self._summed(inputs[None], self.gradients[example, None])
            return made
        images = self.inputs.chunk(self.groups, 1)
        gradients = self.gradients.chunk(self.groups, 1)
        parts = [
            patch_gradients(patch_windows(i, self.kernel, self.stride, self.dilation), g)
            for i, g in zip(images, gradients, strict=True)
        ]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def patch_windows(
    images: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> Tensor:
    """A view (examples, H′, W′, kh, kw, C) of the patch under each output of a convolution."""
    high, wide = (gap * (size - 1) + 1 for size, gap in zip(kernel, dilation, strict=True))
    windows = images.permute(0, 2, 3, 1).unfold(1, high, stride[0]).unfold(2, wide, stride[1])
    return windows[..., :: dilation[0], :: dilation[1]].permute(0, 1, 2, 4, 5, 3)


def patch_gradients(windows: Tensor, gradients: Tensor) -> Tensor:
    """Each example's gradient (examples, O, kh, kw, C), from patches and gradients (…, O, H′, W′).

    Patches are copied a few examples at a time into one buffer that stays in the cache; all of them
    at once would cost more in memory traffic than the products do.
    """
    flat = gradients.permute(0, 2, 3, 1).flatten(1, 2)
    shape = windows.shape[3:]
    made = gradients.new_empty(len(flat), gradients.shape[1], shape.numel())
    step = max(1, BUFFER // (flat.shape[1] * shape.numel()))
    # A copy runs along a row of positions where channels are few, and along a row of the patch
    # where they are many: whichever is longer.
    few = shape[1] * shape[2] < windows.shape[2]
    windows = windows.permute(0, 3, 4, 5, 1, 2) if few else windows
    buffer = gradients.new_empty(step, *windows.shape[1:])
    for start in range(0, len(flat), step):
        part = slice(start, min(start + step, len(flat)))
        patches = buffer[: part.stop - start].copy_(windows[part])
        columns = patches.flatten(4).flatten(1, 3).mT if few else patches.flatten(3).flatten(1, 2)
        torch.bmm(flat[part].mT, columns, out=made[part])
    return made.unflatten(2, shape)


@dataclass(frozen=True)
class Lookup:
    """The weight of an Embedding: rows picked by ``indices`` (B, T), gradients (B, T, D)."""

    indices: Tensor
    gradients: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        same = (self.indices[:, :, None] == self.indices[:, None, :]).to(self.gradients.dtype)
        products = self.gradients @ self.gradients.mT
        size = self.gradients.shape[2]
        return _norms_by_positions(same, products, *self._squares, sizes=(1, size), roundings=size)

    def squared_rounding(self) -> Tensor:
        # One sum over the whole batch in double precision, in units of the single-precision
        # roundoff: the errors of all blocks count, each with all terms.
        blocks = max(1.0, len(self.indices) / BLOCK)
        terms = 2 * blocks * self.indices.numel() * UNIT_DOUBLE / UNIT_SINGLE
        return _squared_lengths(*self._squares) * terms**2

    def per_example(self) -> Tensor:
        batch, _, size = self.gradients.shape
        made = self.gradients.new_zeros(batch, self.rows, size)
        index = self.indices[:, :, None].expand(-1, -1, size)
        return made.scatter_add_(1, index, self.gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None]).double()
        made = scaled.new_zeros(self.rows, scaled.shape[2])
        return made.index_add_(0, self.indices.flatten(), scaled.flatten(0, 1))

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """1 and ‖g_t‖² of each position."""
        squares = squared_norms(self.gradients)
        return torch.ones_like(squares), squares


class Together:
    """Several uses of one parameter: a layer called twice, or tied weights.

    The norm of a sum is not the sum of norms, so the gradients themselves are needed.
    """

    def __init__(self, uses: list[Contribution]) -> None:
        total = uses[0].per_example()
        for use in uses[1:]:
            total = total + use.per_example().reshape(total.shape)
        self._rows = Rows(total)

    def squared_norms(self) -> Tensor:
        return self._rows.squared_norms()

    def squared_rounding(self) -> None:
        return None

    def per_example(self) -> Tensor:
        return self._rows.per_example()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._rows.weighted_sum(weights)


def by_unit(use: Contribution, units: Tensor, count: int) -> Rows:
    """Each unit's gradient, the sum of its examples', from ``units`` 0, 1, ... of the examples."""
    gradients = use.per_example()
    total = gradients.new_zeros(count, *gradients.shape[1:])
    return Rows(total.index_add_(0, units, gradients))


def _cheaper_by_positions(positions: int, size_in: int, size_out: int) -> bool:
    products = positions**2 * (size_in + size_out)
    return products < MULTIPLICATIONS_PER_NUMBER * size_in * size_out


def _norms_by_positions(
    inputs: Tensor,
    gradients: Tensor,
    input_squares: Tensor,
    gradient_squares: Tensor,
    *,
    sizes: tuple[int, int],
    roundings: int,
) -> Tensor:
    """An upper bound on ‖Σ_t g_t·a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s) from inner products.

    ``sizes`` are the numbers of products in the inner products of a and of g, and ``roundings`` is
    how many roundings a pair of them goes through. Terms can cancel, so a bound on the error
    relative to L² = (Σ_t ‖g_t‖·‖a_t‖)² is added, and one on what can underflow.
    """
    norms = (inputs * gradients).sum(2).sum(1).double().abs_()
    positions = inputs.shape[1]
    relative = 1.01 * sum_error(roundings + 2 * positions + 2)
    norms += relative * _squared_lengths(input_squares, gradient_squares)
    lost = sizes[0] * gradient_squares.sum(1) + sizes[1] * input_squares.sum(1) + positions
    return norms.add_(lost, alpha=2 * positions * LOST_SQUARE)


def _squared_lengths(input_squares: Tensor, gradient_squares: Tensor) -> Tensor:
    """L² = (Σ_t ‖g_t‖·‖a_t‖)² of each example."""
    return (input_squares * gradient_squares).sqrt_().sum(1).square_()
