"""A small residual network that is trained on public records and then frozen.

The features are spatial averages of its middle and last layers. Batch normalisation is allowed
here: its statistics are those of public records, and are frozen with the weights.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pacdp.data.records import Records
from pacdp.errors import InputError
from pacdp.features.base import Extractor
from pacdp.progress import Progress
from pacdp.tasks import Classification

_BATCH = 128
_RATE, _MOMENTUM, _DECAY, _SMOOTHING = 0.2, 0.9, 5e-4, 0.1
# Batches are shifted by at most this number of pixels, by the number of channels.
_SHIFT = {1: 2, 3: 4}


class _Block(nn.Module):
    """Halves the resolution and doubles the channels, with a shortcut past two convolutions."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False),
            *(nn.BatchNorm2d(outgoing), nn.ReLU()),
            nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.past = nn.Conv2d(incoming, outgoing, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the next feature maps."""
        smaller = functional.max_pool2d(maps, 2)
        return functional.relu(self.path(smaller) + self.past(smaller))


class Network(Extractor):
    """Square roots of averages: over parts of the middle block, and over the whole last block.

    With ``early`` the first block, in smaller parts, replaces the last one, which is the most
    specific to the classes that it was trained on. Photographs are averaged with their mirror
    images; handwriting is not.

    >>> network = Network((1, 28, 28), width=4).build(classes=10).eval()
    >>> images = torch.zeros(2, 1, 28, 28)
    >>> network(images).shape, network.transform(images).shape
    (torch.Size([2, 10]), torch.Size([2, 96]))
    """

    defaults: ClassVar = {"width": 24, "epochs": 12, "early": 0, "upright": 0}
    middle: Tensor
    spread: Tensor
    stem: nn.Sequential
    blocks: nn.ModuleList
    head: nn.Linear

    def build(self, classes: int) -> "Network":
        """Create the layers, with random weights."""
        channels, width = self.channels, self.settings["width"]
        self.register_buffer("middle", torch.zeros(1, channels, 1, 1))
        self.register_buffer("spread", torch.ones(1, channels, 1, 1))
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.ModuleList(
            _Block(width * 2**depth, width * 2 ** (depth + 1)) for depth in range(3)
        )
        self.head = nn.Linear(8 * width, classes)
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], *options: bool, **named: bool) -> Any:
        """Create the layers of a trained network and load their weights."""
        self.build(len(state_dict["head.bias"]))
        return super().load_state_dict(state_dict, *options, **named)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores."""
        return torch.as_tensor(self.head(self._maps(images)[-1].mean((2, 3))))

    def compute(self, images: Tensor) -> Tensor:
        """Return the features of each image."""
        pooled = self._pool(images)
        if self._mirrors:
            pooled = (pooled + self._pool(images.flip(3))) / 2
        return pooled.sqrt()

    @property
    def _mirrors(self) -> bool:
        return self.channels == 3

    def _maps(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of each block."""
        maps = [self.stem((images - self.middle) / self.spread)]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        return maps[1:]

    def _pool(self, images: Tensor) -> Tensor:
        first, middle, last = self._maps(images)
        other = self._average(first, 4) if self.settings["early"] else last.mean((2, 3))
        return torch.cat([self._average(middle, 2), other], dim=1)

    def _average(self, maps: Tensor, down: int) -> Tensor:
        """Average maps over ``down`` parts vertically, half as many horizontally if mirrored."""
        across = down // 2 if self._mirrors else down
        return functional.adaptive_avg_pool2d(maps, (down, across)).flatten(1)

    def fit(self, records: Records, *, classes: int, seed: int, progress: Progress) -> None:
        """Train on public images, randomly shifted and, in colour, mirrored.

        >>> records = Records(features=np.ones((128, 1, 8, 8)), labels=np.arange(128) % 2)
        >>> network = Network((1, 8, 8), width=2, epochs=1)
        >>> network.fit(records, classes=2, seed=0, progress=lambda *progress: print(progress))
        ('training the public network', 1, 1)
        """
        images, labels = records.tensors(Classification(classes))
        images = self.prepare(images)
        if len(images) < _BATCH:
            raise InputError(f"public network: {len(images)} records, must be at least {_BATCH}")
        random = np.random.default_rng([seed, 13])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.build(classes)
        self.middle.copy_(images.mean((0, 2, 3), keepdim=True))
        self.spread.copy_(images.std((0, 2, 3), keepdim=True))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batches, epochs = len(images) // _BATCH, self.settings["epochs"]
        optimiser = torch.optim.SGD(
            self.parameters(), lr=_RATE, momentum=_MOMENTUM, nesterov=True, weight_decay=_DECAY
        )
        rate = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=_RATE, total_steps=epochs * batches, pct_start=0.25
        )
        shift = _SHIFT[self.channels]
        padded = functional.pad(images, (shift,) * 4)
        self.train()
        for epoch in range(epochs):
            order = torch.from_numpy(random.permutation(len(images)))
            for batch in order[: batches * _BATCH].split(_BATCH):
                augmented = _augment(padded[batch], shift, self._mirrors, random)
                loss = functional.cross_entropy(
                    self(augmented), labels[batch], label_smoothing=_SMOOTHING
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                rate.step()
            progress("training the public network", epoch + 1, epochs)
        self.eval()


def _augment(padded: Tensor, shift: int, mirrors: bool, random: np.random.Generator) -> Tensor:
    """Crop a batch at a random position, and mirror some of its images."""
    down, across = random.integers(2 * shift + 1, size=2)
    high, wide = (side - 2 * shift for side in padded.shape[2:])
    part = padded[:, :, down : down + high, across : across + wide]
    if mirrors:
        mirrored = torch.from_numpy(random.random(len(part)) < 0.5)[:, None, None, None]
        part = torch.where(mirrored, part.flip(3), part)
    return part.contiguous(memory_format=torch.channels_last)
