"""Deskewing: the slant of handwriting depends on the writer and not on the digit."""

import torch
from torch import Tensor
from torch.nn import functional

_EPSILON = 1e-6


def deskew(images: Tensor) -> Tensor:
    """Shear images until they are upright, and centre them by their mass.

    Only an image's own moments are used, as by LeCun et al. (Proceedings of the IEEE 86, 1998).

    >>> leaning = torch.eye(9).flip(1)[None, None]
    >>> straight = deskew(leaning)
    >>> bool(straight[0, 0, :, 4].sum() > 2 * leaning[0, 0, :, 4].sum())
    True
    """
    count, _, high, wide = images.shape
    ink = images.mean(1)
    ink = ink / ink.sum((1, 2), keepdim=True).clamp(min=_EPSILON)
    down = torch.linspace(-1, 1, high, device=images.device)[None, :, None]
    across = torch.linspace(-1, 1, wide, device=images.device)[None, None]
    middle_down, middle_across = (ink * down).sum((1, 2)), (ink * across).sum((1, 2))
    down, across = down - middle_down[:, None, None], across - middle_across[:, None, None]
    variance = (ink * down.square()).sum((1, 2)).clamp(min=_EPSILON)
    slant = (ink * down * across).sum((1, 2)) / variance
    matrix = torch.zeros(count, 2, 3, device=images.device)
    matrix[:, 0, 0] = matrix[:, 1, 1] = 1
    matrix[:, 0, 1], matrix[:, 0, 2], matrix[:, 1, 2] = slant, middle_across, middle_down
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, align_corners=True)
