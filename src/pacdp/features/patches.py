"""Filters learned from image patches (Coates, Lee and Ng, AISTATS 2011).

Patches are normalised in brightness and contrast, whitened and clustered. An image is described by
the average response to each cluster's centre in each of its quarters.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pacdp.data.records import Records
from pacdp.errors import InputError
from pacdp.features.base import Extractor
from pacdp.progress import Progress
from pacdp.validation import FloatArray

_SAMPLES = 50_000
# Added to the contrast of a patch, so that the noise of flat patches is not amplified.
_CONTRAST = 10 / 255
# Added to the variances in whitening, for the same reason.
_REGULARISATION = 0.1
_THRESHOLD = 0.25
_SIDES = 2
# Responses are much larger than images; those of a few at a time fit the processor's cache.
_BATCH = 8


class Patches(Extractor):
    """Responses of filters, positive and negative separately, averaged over quarters of the image.

    >>> Patches((1, 28, 28), filters=5).transform(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 40])
    """

    defaults: ClassVar = {"filters": 256, "size": 6, "upright": 0}
    weight: Tensor
    shift: Tensor

    def __init__(self, shape: tuple[int, ...], **settings: int) -> None:
        super().__init__(shape, **settings)
        for setting, most in (("size", min(shape[1:])), ("filters", _SAMPLES)):
            if (value := self.settings[setting]) > most:
                raise InputError(
                    f"representation.settings.{setting} = {value}: must be at most {most}"
                )
        filters, self.size = self.settings["filters"], self.settings["size"]
        self.register_buffer("weight", torch.zeros(filters, self.channels * self.size**2))
        self.register_buffer("shift", torch.zeros(filters))

    def compute(self, images: Tensor) -> Tensor:
        """Return the averages of each image."""
        return torch.cat([self._respond(batch) for batch in images.split(_BATCH)])

    def _respond(self, images: Tensor) -> Tensor:
        filters = self.weight.unflatten(1, (self.channels, self.size, self.size))
        # Normalising the response is the same as normalising the patch, without extracting it.
        mean = functional.avg_pool2d(images.mean(1, keepdim=True), self.size, 1)
        square = functional.avg_pool2d(images.square().mean(1, keepdim=True), self.size, 1)
        spread = ((square - mean.square()).clamp(min=0) + _CONTRAST**2).sqrt()
        total, shift = (values[:, None, None] for values in (self.weight.sum(1), self.shift))
        responses = (functional.conv2d(images, filters) - mean * total) / spread - shift
        sides = [(sign * responses - _THRESHOLD).relu_() for sign in (1, -1)]
        pooled = [functional.adaptive_avg_pool2d(side, _SIDES) for side in sides]
        return torch.cat(pooled, dim=1).flatten(1)

    def fit(self, records: Records, *, classes: int, seed: int, progress: Progress) -> None:
        """Learn the filters from patches of the images; labels are not used."""
        from sklearn.cluster import MiniBatchKMeans

        images = self.prepare(records.inputs())
        patches = _sample_patches(images, self.size, np.random.default_rng([seed, 12]))
        middle = patches.mean(0)
        variances, directions = np.linalg.eigh(np.cov(patches, rowvar=False))
        whiten = (directions / np.sqrt(variances + _REGULARISATION)) @ directions.T
        white = (patches - middle) @ whiten
        # scikit-learn takes seeds of 32 bits only.
        clusters = MiniBatchKMeans(
            self.settings["filters"], batch_size=4096, n_init=1, random_state=seed % 2**32
        )
        centres = clusters.fit(white.astype(np.float32)).cluster_centers_.astype(float)
        # A cluster at the mean itself has length zero, and responds to nothing.
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        weight = centres @ whiten
        self.weight.copy_(torch.from_numpy(weight))
        self.shift.copy_(torch.from_numpy(weight @ middle))


def _sample_patches(images: Tensor, size: int, random: np.random.Generator) -> FloatArray:
    """Return normalised patches from random positions of random images."""
    count, _, high, wide = images.shape
    which = random.integers(count, size=_SAMPLES)
    down = random.integers(high - size + 1, size=_SAMPLES)
    across = random.integers(wide - size + 1, size=_SAMPLES)
    step = np.arange(size)
    rows, columns = down[:, None, None] + step[:, None], across[:, None, None] + step
    # From (patches, size, size, channels) to the order in which torch unfolds patches.
    taken = images.numpy()[which[:, None, None], :, rows, columns].transpose(0, 3, 1, 2)
    values = torch.from_numpy(taken.reshape(_SAMPLES, -1))
    normalised: FloatArray = normalise_patches(values).double().numpy()
    return normalised


def normalise_patches(patches: Tensor) -> Tensor:
    """Scale rows to mean zero and, unless they are flat, to variance one."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + _CONTRAST**2).sqrt()
