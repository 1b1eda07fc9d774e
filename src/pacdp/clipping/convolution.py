"""Per-example gradients of convolutions, from patches of the input and output gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from pacdp.clipping.numerics import (
    LOST_SQUARE,
    squared_norms,
    sum_error,
    zero_nonfinite,
    zero_nonfinite_,
)
from pacdp.clipping.per_example import MaterialisedGradient, PositionSum, norms_from_products

# A convolution with more multiplications than this is worth a call of its own for each example.
WORTH_A_CALL = 5_000_000
# Numbers in a buffer that fits into a core's own cache.
BUFFER = 400_000


@dataclass(frozen=True)
class ConvolutionGradient(PositionSum):
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
            return MaterialisedGradient(self._materialised).squared_norms()
        gradients = self.gradients.flatten(2)
        return norms_from_products(
            self._patch_products,
            gradients.mT @ gradients,
            *self._squares,
            sizes=self._sizes,
            roundings=self._patch_roundings + self._shape[0],
        )

    def per_example(self) -> Tensor:
        return self._materialised if self._one_by_one else self._materialised.permute(0, 1, 4, 2, 3)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_materialised" in self.__dict__:
            total = MaterialisedGradient(self._materialised).weighted_sum(weights)
            return total if self._one_by_one else total.permute(0, 3, 1, 2)
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None, None])
        inputs = zero_nonfinite(self.inputs)
        size = self._examples_at_once
        parts = zip(inputs.split(size), scaled.split(size), strict=True)
        total = self._sum(*next(parts))
        for part in parts:
            total = total.double().add_(self._sum(*part))
        return total

    def _sum(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Compute the ordinary weight gradient, summed over examples."""
        return conv2d_weight(
            *(inputs, self._shape, gradients),
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        channels = self.inputs.shape[1] // self.groups
        return (self.gradients.shape[1], channels, *self.kernel)

    @property
    def _sizes(self) -> tuple[int, int]:
        return math.prod(self._shape[1:]), self._shape[0]

    @property
    def _positions(self) -> int:
        return self.gradients[0, 0].numel()

    @property
    def _by_positions(self) -> bool:
        return self.groups == 1 and super()._by_positions

    @property
    def _one_by_one(self) -> bool:
        return math.prod(self._shape) * self._positions > WORTH_A_CALL

    @property
    def _patch_roundings(self) -> int:
        """How many roundings a product goes through in an inner product of two patches."""
        return self._shape[1] + math.prod(self.kernel)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """‖a_t‖² and ‖g_t‖² of each position, with patches a_t."""
        patches = self._patch_products.diagonal(dim1=1, dim2=2).double()
        lost = math.prod(self._shape[1:]) * LOST_SQUARE
        patches = patches * (1 + 2 * sum_error(self._patch_roundings)) + lost
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
    def _materialised(self) -> Tensor:
        """(B, O, C, kh, kw) one by one, and with the channels last otherwise."""
        if self._one_by_one:
            gradients = self.inputs.new_empty(len(self.inputs), *self._shape)
            for example, inputs in enumerate(self.inputs):
                gradients[example] = self._sum(inputs[None], self.gradients[example, None])
            return gradients
        images = self.inputs.chunk(self.groups, 1)
        parts = [
            patch_gradients(patch_windows(i, self.kernel, self.stride, self.dilation), g)
            for i, g in zip(images, self.gradients.chunk(self.groups, 1), strict=True)
        ]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def patch_windows(
    images: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> Tensor:
    """View images as the patches (examples, H′, W′, kh, kw, C) under the outputs of a kernel."""
    high, wide = (gap * (size - 1) + 1 for size, gap in zip(kernel, dilation, strict=True))
    windows = images.permute(0, 2, 3, 1).unfold(1, high, stride[0]).unfold(2, wide, stride[1])
    return windows[..., :: dilation[0], :: dilation[1]].permute(0, 1, 2, 4, 5, 3)


def patch_gradients(windows: Tensor, gradients: Tensor) -> Tensor:
    """Compute gradients (examples, O, kh, kw, C) from patches and gradients (…, O, H′, W′).

    Patches are copied a few examples at a time into one buffer that stays in the cache; all of them
    at once would cost more in memory traffic than the products do.
    """
    flat = gradients.permute(0, 2, 3, 1).flatten(1, 2)
    shape = windows.shape[3:]
    result = gradients.new_empty(len(flat), gradients.shape[1], shape.numel())
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
        torch.bmm(flat[part].mT, columns, out=result[part])
    return result.unflatten(2, shape)
