"""The extractors by name, and the two that combine or need no others."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pacdp.data.records import Records
from pacdp.errors import InputError
from pacdp.features.base import BATCH, Extractor
from pacdp.features.hog import OrientedGradients
from pacdp.features.network import Network
from pacdp.features.patches import Patches
from pacdp.features.scattering import Scattering
from pacdp.progress import Progress
from pacdp.validation import refuse_unknown


class Plain(Extractor):
    """The pixels themselves.

    >>> Plain((1, 28, 28)).transform(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 784])
    """

    def compute(self, images: Tensor) -> Tensor:
        """Flatten the images."""
        return images.flatten(1)


class Combined(Extractor):
    """Oriented gradients and patches, each scaled to the same total variance.

    >>> combined = Combined((1, 28, 28), filters=5)
    >>> [part.shape[1] for part in combined.parts(torch.zeros(2, 1, 28, 28))]
    [392, 40]
    """

    defaults: ClassVar = {"cell": 4, "directions": 8, "filters": 256, "size": 6, "upright": 0}
    gradients: OrientedGradients
    patches: Patches
    spreads: Tensor

    def __init__(self, shape: tuple[int, ...], **settings: int) -> None:
        super().__init__(shape, **settings)
        for name, kind in (("gradients", OrientedGradients), ("patches", Patches)):
            self.add_module(name, kind(shape, **{key: self.settings[key] for key in kind.defaults}))
        self.register_buffer("spreads", torch.ones(2))

    def compute(self, images: Tensor) -> Tensor:
        """Return both parts of each image, side by side."""
        parts = zip(self.parts(images), self.spreads, strict=True)
        return torch.cat([part / spread for part, spread in parts], dim=1)

    def parts(self, images: Tensor) -> list[Tensor]:
        """Return the two parts before scaling."""
        return [self.gradients.compute(images), self.patches.compute(images)]

    def fit(self, records: Records, *, classes: int, seed: int, progress: Progress) -> None:
        """Learn the patches, and the total standard deviation of both parts."""
        self.patches.fit(records, classes=classes, seed=seed, progress=progress)
        images = self.prepare(records.inputs())
        batches = [self.parts(batch) for batch in images.split(BATCH)]
        for number, rows in enumerate(zip(*batches, strict=True)):
            self.spreads[number] = torch.cat(rows).var(0).sum().sqrt()


EXTRACTORS: dict[str, type[Extractor]] = {
    "plain": Plain,
    "gradients": OrientedGradients,
    "scattering": Scattering,
    "patches": Patches,
    "combined": Combined,
    "network": Network,
}


def make_extractor(name: str, shape: tuple[int, ...], given: Mapping[str, float]) -> Extractor:
    """Make an extractor that has not been fitted; settings that it does not have are refused.

    >>> make_extractor("gradients", (1, 28, 28), {"cell": 7.0}).settings
    {'cell': 7, 'directions': 8, 'upright': 0}
    """
    kind = EXTRACTORS[name]
    refuse_unknown(f"representation {name}", given, kind.defaults)
    for setting, value in given.items():
        switch = setting in ("early", "upright")
        if not float(value).is_integer() or value < (0 if switch else 1) or (switch and value > 1):
            allowed = "0 or 1" if switch else "a whole number, at least 1"
            raise InputError(f"representation.settings.{setting} = {value:g}: must be {allowed}")
    return kind(shape, **{setting: int(value) for setting, value in given.items()})


def transform_records(extractor: Extractor, records: Records) -> Iterator[Tensor]:
    """Yield the rows of an extractor for the records, a batch at a time.

    >>> images = Records(features=np.zeros((300, 1, 8, 8), np.uint8), labels=np.zeros(300))
    >>> [len(rows) for rows in transform_records(Plain((1, 28, 28)), images)]
    [250, 50]
    """
    for start in range(0, len(records), BATCH):
        batch = records.take(np.arange(start, min(start + BATCH, len(records))))
        yield extractor.transform(batch.inputs())
