"""Filters that are small pieces of generated images, and where in an image they answer.

After Coates, Lee and Ng (AISTATS 2011): patches are freed of brightness, contrast and the sameness
of neighbouring pixels, and grouped; an image is described by how strongly each group's middle
answers in each quarter. Here the patches come from generated images, so no record goes in.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pacdp.errors import InputError
from pacdp.validation import FloatArray

_SAMPLES = 50_000
_DIM_CONTRAST = 10 / 255
# Directions of patches with less spread than this are noise, and are not blown up.
_REGULAR = 0.1
_THRESHOLD = 0.25
_SIDES = 2
_NEAR = 8


class Patches(nn.Module):
    """Answers of filters, positive and negative apart, averaged over quarters of the image.

    >>> Patches(channels=1, filters=5, size=6)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 40])
    """

    weight: Tensor
    shift: Tensor

    def __init__(self, channels: int, filters: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("weight", torch.zeros(filters, channels * size**2))
        self.register_buffer("shift", torch.zeros(filters))

    def forward(self, images: Tensor) -> Tensor:
        """One row of numbers for each image with values in [0, 1]."""
        # Answers are many times larger than images: few at a time stay near the processor.
        return torch.cat([self._answers(some) for some in images.split(_NEAR)])

    def _answers(self, images: Tensor) -> Tensor:
        channels = images.shape[1]
        filters = self.weight.unflatten(1, (channels, self.size, self.size))
        # A patch is normalised after its filter has answered: the same, without cutting it out.
        mean = functional.avg_pool2d(images.mean(1, keepdim=True), self.size, 1)
        square = functional.avg_pool2d(images.square().mean(1, keepdim=True), self.size, 1)
        spread = ((square - mean.square()).clamp(min=0) + _DIM_CONTRAST**2).sqrt()
        total = self.weight.sum(1)[:, None, None]
        answers = (functional.conv2d(images, filters) - mean * total) / spread - self.shift[
            :, None, None
        ]
        sides = [(sign * answers - _THRESHOLD).relu_() for sign in (1, -1)]
        pooled = [functional.adaptive_avg_pool2d(side, _SIDES) for side in sides]
        return torch.cat(pooled, dim=1).flatten(1)


def learned_patches(images: Tensor, *, filters: int = 256, size: int = 6, seed: int = 0) -> Patches:
    """Filters learned from images that are nobody's.

    >>> learned_patches(torch.rand(40, 3, 16, 16), filters=8)(torch.zeros(1, 3, 16, 16)).shape
    torch.Size([1, 64])
    """
    from sklearn.cluster import MiniBatchKMeans

    side = min(images.shape[2:])
    for setting, value, most in (("size", size, side), ("filters", filters, _SAMPLES)):
        if value > most:
            raise InputError(f"representation.settings.{setting} = {value}: must be at most {most}")
    random = np.random.default_rng([seed, 12])
    pieces = _pieces(images, size, random)
    middle = pieces.mean(0)
    spread, turn = np.linalg.eigh(np.cov(pieces, rowvar=False))
    whiten = (turn / np.sqrt(spread + _REGULAR)) @ turn.T
    white = (pieces - middle) @ whiten
    # scikit-learn's seeds are shorter than ours.
    groups = MiniBatchKMeans(filters, batch_size=4096, n_init=1, random_state=seed % 2**32)
    centres = groups.fit(white.astype(np.float32)).cluster_centers_.astype(float)
    # A group may lie at the middle itself, and then answers nothing.
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    made = Patches(int(images.shape[1]), filters, size)
    weight = centres @ whiten
    made.weight.copy_(torch.from_numpy(weight))
    made.shift.copy_(torch.from_numpy(weight @ middle))
    return made.eval()


def _pieces(images: Tensor, size: int, random: np.random.Generator) -> FloatArray:
    """Patches from random places of random images, normalised."""
    count, _, high, wide = images.shape
    which = random.integers(count, size=_SAMPLES)
    down = random.integers(high - size + 1, size=_SAMPLES)
    across = random.integers(wide - size + 1, size=_SAMPLES)
    step = np.arange(size)
    rows, columns = down[:, None, None] + step[:, None], across[:, None, None] + step
    # (patches, size, size, channels), in the order in which torch unfolds them.
    taken = images.numpy()[which[:, None, None], :, rows, columns].transpose(0, 3, 1, 2)
    values = torch.from_numpy(taken.reshape(_SAMPLES, -1))
    normalised: FloatArray = _normalised(values).double().numpy()
    return normalised


def _normalised(pieces: Tensor) -> Tensor:
    """Patches of mean zero and, unless they are flat, of spread one."""
    centred = pieces - pieces.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + _DIM_CONTRAST**2).sqrt()
