"""The interface of feature extractors."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from pacdp.data.records import Records
from pacdp.features.deskew import deskew
from pacdp.progress import Progress

BATCH = 250
"""The number of images that are processed at a time."""


class Extractor(nn.Module):
    """Maps images of a shape (channels, height, width) with values in [0, 1] to rows of numbers.

    ``settings`` are whole numbers; those that are not given have the values in ``defaults``. What
    an extractor has learned is in its ``state_dict``.
    """

    defaults: ClassVar[dict[str, int]] = {}

    def __init__(self, shape: tuple[int, ...], **settings: int) -> None:
        super().__init__()
        self.channels = shape[0]
        self.settings = {**self.defaults, **settings}

    def fit(self, records: Records, *, classes: int, seed: int, progress: Progress) -> None:
        """Learn from public or generated images; most extractors have nothing to learn."""

    def transform(self, images: Tensor) -> Tensor:
        """Return a row of numbers for each image (n, channels, height, width)."""
        with torch.no_grad():
            return self.compute(self.prepare(images))

    def prepare(self, images: Tensor) -> Tensor:
        """Deskew the images if the setting ``upright`` is 1."""
        if not self.settings.get("upright"):
            return images
        return torch.cat([deskew(batch) for batch in images.split(BATCH)])

    def compute(self, images: Tensor) -> Tensor:
        """Return the rows of prepared images."""
        raise NotImplementedError
