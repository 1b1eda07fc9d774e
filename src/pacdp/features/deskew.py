"""Handwriting put upright: the slant of a hand says who wrote, and not what."""

import torch
from torch import Tensor
from torch.nn import functional

_LITTLE = 1e-6


def upright(images: Tensor) -> Tensor:
    """Grey images, sheared until their ink leans neither way, and centred by its mass.

    Each image by its own moments alone, as LeCun et al. (Proceedings of the IEEE 86, 1998) did.

    >>> leaning = torch.eye(9).flip(1)[None, None]
    >>> straight = upright(leaning)
    >>> bool(straight[0, 0, :, 4].sum() > 2 * leaning[0, 0, :, 4].sum())
    True
    """
    count, _, high, wide = images.shape
    ink = images.mean(1)
    ink = ink / ink.sum((1, 2), keepdim=True).clamp(min=_LITTLE)
    down = torch.linspace(-1, 1, high, device=images.device)[None, :, None]
    across = torch.linspace(-1, 1, wide, device=images.device)[None, None]
    middle_down, middle_across = (ink * down).sum((1, 2)), (ink * across).sum((1, 2))
    down, across = down - middle_down[:, None, None], across - middle_across[:, None, None]
    slant = (ink * down * across).sum((1, 2)) / (ink * down.square()).sum((1, 2)).clamp(min=_LITTLE)
    turn = torch.zeros(count, 2, 3, device=images.device)
    turn[:, 0, 0] = turn[:, 1, 1] = 1
    turn[:, 0, 1], turn[:, 0, 2], turn[:, 1, 2] = slant, middle_across, middle_down
    grid = functional.affine_grid(turn, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, align_corners=True)
