"""Histograms of oriented gradients (Dalal and Triggs, CVPR 2005).

Cells overlap by half, so that the weight of an edge that moves by a pixel moves smoothly from one
cell to the next. Nothing is learned.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pacdp.errors import InputError
from pacdp.features.base import Extractor

# Added to the energy of a cell, so that the noise of empty cells is not amplified.
_REGULARISATION = 1e-2


class OrientedGradients(Extractor):
    """Histograms of the orientations of edges, normalised over neighbouring cells.

    >>> OrientedGradients((1, 28, 28)).transform(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 392])
    """

    defaults: ClassVar = {"cell": 4, "directions": 8, "upright": 0}

    def compute(self, images: Tensor) -> Tensor:
        """Return the histograms of each image."""
        cell, directions = self.settings["cell"], self.settings["directions"]
        count, _, high, wide = images.shape
        if cell > min(high, wide):
            raise InputError(
                f"gradients: cells of {cell} pixels are too large for images of {high} x {wide}"
            )
        across = _half_difference(images, 3)
        down = _half_difference(images, 2)
        strength = (across.square() + down.square()).sqrt()
        # The channel with the strongest edge determines the pixel.
        strength, strongest = strength.max(1, keepdim=True)
        angle = torch.atan2(down, across).gather(1, strongest) % math.pi
        place = angle / math.pi * directions
        lower = place.floor()
        share = place - lower
        first = lower.long() % directions
        edges = torch.zeros(count, directions, high, wide, device=images.device)
        edges.scatter_(1, first, strength * (1 - share))
        edges.scatter_add_(1, (first + 1) % directions, strength * share)
        # A cell extends to the middle of its neighbours; if its size is odd, one more to the right.
        before, after = cell // 2, cell - cell // 2
        wider = functional.pad(edges.reshape(-1, 1, high, wide), (before, after) * 2)
        cells = functional.conv2d(wider, _tent_weights(cell).to(images), stride=cell)
        cells = cells.reshape(count, directions, *cells.shape[2:])
        energy = cells.square().sum(1, keepdim=True)
        around = functional.avg_pool2d(functional.pad(energy, (1, 1, 1, 1), mode="replicate"), 3, 1)
        return (cells / (around + _REGULARISATION).sqrt()).flatten(1)


def _half_difference(images: Tensor, axis: int) -> Tensor:
    """Return central differences; the border pixels are repeated."""
    padding = (1, 1, 0, 0) if axis == 3 else (0, 0, 1, 1)
    wider = functional.pad(images, padding, mode="replicate")
    size = images.shape[axis]
    return (wider.narrow(axis, 2, size) - wider.narrow(axis, 0, size)) / 2


def _tent_weights(cell: int) -> Tensor:
    """Return the bilinear weights of a cell, zero at the centres of its neighbours."""
    steps = torch.arange(2 * cell) + 0.5
    side = torch.minimum(steps, 2 * cell - steps) / cell
    return (side[:, None] * side)[None, None]
