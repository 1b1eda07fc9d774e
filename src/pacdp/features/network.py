"""A small residual network, trained on public records and then frozen.

What the middle and the last layers answer, averaged over places, describes a record. Batch
normalisation is no harm here: it is trained on public records and frozen with the rest.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pacdp.errors import InputError

Observer = Callable[[str, int, int], None]
"""Told what is being done, how much of it is over, and how much there is."""

_BATCH = 128
_RATE, _MOMENTUM, _DECAY, _SMOOTHING = 0.2, 0.9, 5e-4, 0.1
# Each batch is moved by at most so many pixels.
_SHIFT = {1: 2, 3: 4}


class _Block(nn.Module):
    """Half the size, twice the channels, and a way past the two convolutions."""

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
        """The next maps."""
        smaller = functional.max_pool2d(maps, 2)
        return functional.relu(self.path(smaller) + self.past(smaller))


class Network(nn.Module):
    """Three blocks and a head; :meth:`features` is what stays when the head is taken off.

    >>> network = Network(1, 10, width=4).eval()
    >>> images = torch.zeros(2, 1, 28, 28)
    >>> network(images).shape, network.features(images).shape
    (torch.Size([2, 10]), torch.Size([2, 96]))
    """

    middle: Tensor
    spread: Tensor

    def __init__(self, channels: int, classes: int, *, width: int) -> None:
        super().__init__()
        self.flips = channels == 3
        self.register_buffer("middle", torch.zeros(1, channels, 1, 1))
        self.register_buffer("spread", torch.ones(1, channels, 1, 1))
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.ModuleList(
            _Block(width * 2**depth, width * 2 ** (depth + 1)) for depth in range(3)
        )
        self.head = nn.Linear(8 * width, classes)

    def maps(self, images: Tensor) -> list[Tensor]:
        """What each block answers."""
        current = self.stem((images - self.middle) / self.spread)
        found = []
        for block in self.blocks:
            current = block(current)
            found.append(current)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return torch.as_tensor(self.head(self.maps(images)[-1].mean((2, 3))))

    def features(self, images: Tensor, *, early: bool = False) -> Tensor:
        """Square roots of averages: of parts of the middle block, of the whole in the last.

        ``early`` takes the first block, in smaller parts, for the last, which knows most of the
        classes that it was trained on and least of others. Photographs mean the same in a mirror:
        both are averaged, and left and right are one part. Letters do not.
        """
        pooled = self._pooled(images, early)
        if self.flips:
            pooled = (pooled + self._pooled(images.flip(3), early)) / 2
        return pooled.sqrt()

    def _pooled(self, images: Tensor, early: bool) -> Tensor:
        first, middle, last = self.maps(images)
        other = self._parts(first, 4) if early else last.mean((2, 3))
        return torch.cat([self._parts(middle, 2), other], dim=1)

    def _parts(self, maps: Tensor, down: int) -> Tensor:
        """Averages over so many parts from top to bottom."""
        across = down // 2 if self.flips else down
        return functional.adaptive_avg_pool2d(maps, (down, across)).flatten(1)


def trained_network(
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    width: int,
    epochs: int,
    seed: int,
    observe: Observer,
) -> Network:
    """A network trained on public images: shifted, and in colour mirrored, at random.

    >>> trained_network(
    ...     *(torch.rand(128, 1, 8, 8), torch.arange(128) % 2, 2),
    ...     **dict(width=2, epochs=1, seed=0, observe=lambda *progress: print(progress)),
    ... ).head.out_features
    ('training the public network', 1, 1)
    2
    """
    if len(images) < _BATCH:
        raise InputError(f"public network: {len(images)} records, must be at least {_BATCH}")
    random = np.random.default_rng([seed, 13])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = Network(images.shape[1], classes, width=width)
    network.middle.copy_(images.mean((0, 2, 3), keepdim=True))
    network.spread.copy_(images.std((0, 2, 3), keepdim=True))
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = len(images) // _BATCH
    optimiser = torch.optim.SGD(
        network.parameters(), lr=_RATE, momentum=_MOMENTUM, nesterov=True, weight_decay=_DECAY
    )
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=_RATE, total_steps=epochs * batches, pct_start=0.25
    )
    shift = _SHIFT[images.shape[1]]
    wider = functional.pad(images, (shift,) * 4)
    for epoch in range(epochs):
        order = torch.from_numpy(random.permutation(len(images)))
        for batch in order[: batches * _BATCH].split(_BATCH):
            moved = _moved(wider[batch], shift, network.flips, random)
            loss = functional.cross_entropy(
                network(moved), labels[batch], label_smoothing=_SMOOTHING
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
        observe("training the public network", epoch + 1, epochs)
    return network.eval()


def _moved(wider: Tensor, shift: int, flips: bool, random: np.random.Generator) -> Tensor:
    """A batch at another place of its frame, some images in the mirror."""
    down, across = random.integers(2 * shift + 1, size=2)
    high, wide = (side - 2 * shift for side in wider.shape[2:])
    part = wider[:, :, down : down + high, across : across + wide]
    if flips:
        mirrored = torch.from_numpy(random.random(len(part)) < 0.5)[:, None, None, None]
        part = torch.where(mirrored, part.flip(3), part)
    return part.contiguous(memory_format=torch.channels_last)
