"""Per-example gradients of one parameter, kept in whatever form is cheapest.

A layer's weight gradient for one example is a sum over positions t (time steps, pixels) of outer
products g_t·a_tᵀ of what went in and the gradient of what came out. Three questions are asked of
it: its squared norm per example, its sum over examples with given weights, and, where nothing
cheaper will do, itself. The form decides how: the weighted sum is one matrix product as large
as that of ordinary training, and the norm needs either the gradients themselves or only the inner
products between positions, whichever moves less memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

# A product of positions is preferred while it costs fewer multiplications than this for each number
# of the gradient that need not be written and read again.
MULTIPLICATIONS_PER_NUMBER = 64
# Inner products of positions may cancel; the error of the norm is bounded by this many roundings of
# the sum of absolute values, and added.
CANCELLATION = 8 * torch.finfo(torch.float32).eps
# A convolution with more multiplications than this is worth a call of its own for each example.
WORTH_A_CALL = 5_000_000
# Numbers in a buffer that fits into a core's own cache.
BUFFER = 400_000


# Squares of smaller numbers vanish in single precision, also where another factor is huge.
SMALLEST_SQUARE = 1e-30


def sum_of_squares(values: Tensor) -> Tensor:
    """Over the last dimension, to a few roundings however long it is."""
    # The norm needs no copy of the squares, but adds them one after the other.
    if values.shape[-1] <= 4096:
        return torch.linalg.vector_norm(values, dim=-1).square_()
    return values.square().sum(-1)


def factor(values: Tensor) -> Tensor:
    """A sum of squares that will be multiplied by another, and so may not vanish."""
    return sum_of_squares(values).clamp_(min=SMALLEST_SQUARE)


class Contribution(Protocol):
    """What one use of a parameter adds to each example's gradient. Everything is float32."""

    def squared_norms(self) -> Tensor:
        """Squared norm of each example's gradient, rounded up where it may cancel: (B,)."""

    def per_example(self) -> Tensor:
        """Each example's gradient: (B, *shape)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_i w_i·gradient_i: (*shape)."""

    def without(self, examples: Tensor) -> "Contribution":
        """The same with these examples' gradients zero, whatever they were: (B,) flags."""


def _silenced(values: Tensor, examples: Tensor) -> Tensor:
    return values.masked_fill(examples.reshape(-1, *[1] * (values.ndim - 1)), 0)


@dataclass(frozen=True)
class Rows:
    """Gradients that are small enough to be kept as they are."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        return sum_of_squares(self.gradients.flatten(1))

    def per_example(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.gradients.flatten(1)
        return (weights @ flat).reshape(self.gradients.shape[1:])

    def without(self, examples: Tensor) -> "Rows":
        return Rows(_silenced(self.gradients, examples))


@dataclass(frozen=True)
class Outer:
    """Σ_t g_t·a_tᵀ for inputs a: (B, T, I) and gradients g: (B, T, O); weight (O, I)."""

    inputs: Tensor
    gradients: Tensor

    def squared_norms(self) -> Tensor:
        if self.inputs.shape[1] == 1:
            return factor(self.inputs.flatten(1)) * factor(self.gradients.flatten(1))
        if self._by_positions:
            return _positions_norms(
                self.inputs @ self.inputs.mT, self.gradients @ self.gradients.mT
            )
        return Rows(self._made).squared_norms()

    def per_example(self) -> Tensor:
        return self._made

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_made" in self.__dict__:
            return Rows(self._made).weighted_sum(weights)
        scaled = self.gradients * weights[:, None, None]
        return scaled.flatten(0, 1).T @ self.inputs.flatten(0, 1)

    def without(self, examples: Tensor) -> "Outer":
        return Outer(_silenced(self.inputs, examples), _silenced(self.gradients, examples))

    @property
    def _by_positions(self) -> bool:
        positions, size_in = self.inputs.shape[1:]
        size_out = self.gradients.shape[2]
        return _cheaper_by_positions(positions, size_in, size_out)

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
        return _positions_norms(self._patch_products(), gradients.mT @ gradients)

    def per_example(self) -> Tensor:
        return self._made if self._one_by_one else self._made.permute(0, 1, 4, 2, 3)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_made" in self.__dict__:
            total = Rows(self._made).weighted_sum(weights)
            return total if self._one_by_one else total.permute(0, 3, 1, 2)
        return self._summed(self.inputs, self.gradients * weights[:, None, None, None])

    def without(self, examples: Tensor) -> "Convolution":
        return replace(
            self,
            inputs=_silenced(self.inputs, examples),
            gradients=_silenced(self.gradients, examples),
        )

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
    def _by_positions(self) -> bool:
        out, size_in = self._shape[0], math.prod(self._shape[1:])
        positions = self.gradients[0, 0].numel()
        return self.groups == 1 and _cheaper_by_positions(positions, size_in, out)

    @property
    def _one_by_one(self) -> bool:
        return math.prod(self._shape) * self.gradients[0, 0].numel() > WORTH_A_CALL

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
        return _positions_norms(same, self.gradients @ self.gradients.mT)

    def per_example(self) -> Tensor:
        batch, _, size = self.gradients.shape
        made = self.gradients.new_zeros(batch, self.rows, size)
        index = self.indices[:, :, None].expand(-1, -1, size)
        return made.scatter_add_(1, index, self.gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.gradients * weights[:, None, None]
        made = self.gradients.new_zeros(self.rows, scaled.shape[2])
        return made.index_add_(0, self.indices.flatten(), scaled.flatten(0, 1))

    def without(self, examples: Tensor) -> "Lookup":
        return replace(self, gradients=_silenced(self.gradients, examples))


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

    def per_example(self) -> Tensor:
        return self._rows.per_example()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._rows.weighted_sum(weights)

    def without(self, examples: Tensor) -> Rows:
        return self._rows.without(examples)


def by_unit(use: Contribution, units: Tensor) -> Rows:
    """Each unit's gradient, the sum of its examples', from ``units`` 0, 1, ... of the examples."""
    gradients = use.per_example()
    number = int(units.max()) + 1
    total = gradients.new_zeros(number, *gradients.shape[1:])
    return Rows(total.index_add_(0, units, gradients))


def _cheaper_by_positions(positions: int, size_in: int, size_out: int) -> bool:
    products = positions**2 * (size_in + size_out)
    return products < MULTIPLICATIONS_PER_NUMBER * size_in * size_out


def _positions_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    """‖Σ_t g_t·a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s), plus what rounding may have cancelled."""
    norms = (inputs * gradients).sum((1, 2))
    lengths, others = (
        square.diagonal(dim1=1, dim2=2).clamp(min=SMALLEST_SQUARE).sqrt()
        for square in (inputs, gradients)
    )
    largest = (lengths * others).sum(1).square()
    return norms.clamp(min=0) + CANCELLATION * largest
