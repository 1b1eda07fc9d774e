"""Histograms of oriented gradients: which way edges run, cell by cell.

After Dalal and Triggs (CVPR 2005), with cells that overlap by half, so that an edge that moves by a
pixel moves its weight smoothly from one cell to the next. Nothing in it is learned.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pacdp.errors import InputError

# Below this energy a cell counts as empty, and its noise is not blown up.
_FAINT = 1e-2


def oriented_gradients(images: Tensor, *, cell: int = 4, directions: int = 8) -> Tensor:
    """One row of numbers for each image (n, channels, height, width) with values in [0, 1].

    >>> oriented_gradients(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 392])
    """
    count, _, high, wide = images.shape
    if cell > min(high, wide):
        raise InputError(
            f"gradients: cells of {cell} pixels are too large for images of {high} x {wide}"
        )
    across = _half_difference(images, 3)
    down = _half_difference(images, 2)
    strength = (across.square() + down.square()).sqrt()
    # The colour with the strongest edge speaks for a pixel.
    strength, strongest = strength.max(1, keepdim=True)
    angle = torch.atan2(down, across).gather(1, strongest) % math.pi
    place = angle / math.pi * directions
    lower = place.floor()
    share = place - lower
    first = lower.long() % directions
    edges = torch.zeros(count, directions, high, wide, device=images.device)
    edges.scatter_(1, first, strength * (1 - share))
    edges.scatter_add_(1, (first + 1) % directions, strength * share)
    # A cell reaches half of its neighbours; of an odd one the middle pixel lies to the left.
    before, after = cell // 2, cell - cell // 2
    wider = functional.pad(edges.reshape(-1, 1, high, wide), (before, after) * 2)
    cells = functional.conv2d(wider, _tent(cell).to(images), stride=cell)
    cells = cells.reshape(count, directions, *cells.shape[2:])
    energy = cells.square().sum(1, keepdim=True)
    around = functional.avg_pool2d(functional.pad(energy, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return (cells / (around + _FAINT).sqrt()).flatten(1)


def _half_difference(images: Tensor, axis: int) -> Tensor:
    """Half of what the next pixel has more than the one before; edges repeat the last pixel."""
    padding = (1, 1, 0, 0) if axis == 3 else (0, 0, 1, 1)
    wider = functional.pad(images, padding, mode="replicate")
    size = images.shape[axis]
    return (wider.narrow(axis, 2, size) - wider.narrow(axis, 0, size)) / 2


def _tent(cell: int) -> Tensor:
    """Weights of a cell: most in its middle, none where the next cell's middle is."""
    steps = torch.arange(2 * cell) + 0.5
    side = torch.minimum(steps, 2 * cell - steps) / cell
    return (side[:, None] * side)[None, None]
