"""ResNet-18 and ResNet-34 (He et al. 2016) with GroupNorm, for small images.

BatchNorm mixes the records of a batch and stores their statistics, so no gradient depends on one
record only. GroupNorm normalises each record on its own.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pacdp.errors import InputError

GROUPS = 32
Activation = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int, out: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, out)
        self.activation = activation
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(GROUPS, out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps of the block."""
        y = self.activation(self.first_norm(self.first(x)))
        return self.activation(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A 3×3 convolution without max-pooling, four stages of blocks, and a linear layer."""

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        channels: int,
        outputs: int,
        dropout: float,
        activation: Activation = F.relu,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        self.stem_norm = nn.GroupNorm(GROUPS, 64)
        width, layers = 64, []
        for stage, number in enumerate(blocks):
            for block in range(number):
                stride = 2 if stage and not block else 1
                layers.append(Block(width, 64 * 2**stage, stride, activation))
                width = 64 * 2**stage
        self.blocks = nn.Sequential(*layers)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.activation(self.stem_norm(self.stem(x)))
        return torch.as_tensor(self.head(self.dropout(self.blocks(x).mean((2, 3)))))


def resnet18(shape: tuple[int, ...], outputs: int, *, dropout: float = 0.5) -> ResNet:
    """Build ResNet-18 with dropout before the last layer, as the paper does for CIFAR-10."""
    return _resnet("resnet18", (2, 2, 2, 2), shape, outputs, dropout)


def resnet34(shape: tuple[int, ...], outputs: int, *, dropout: float = 0.0) -> ResNet:
    """Build ResNet-34, as the paper does for CIFAR-100."""
    return _resnet("resnet34", (3, 4, 6, 3), shape, outputs, dropout)


def _resnet(
    name: str, blocks: tuple[int, ...], shape: tuple[int, ...], outputs: int, dropout: float
) -> ResNet:
    if len(shape) != 3:
        raise InputError(f"model {name}: takes images, not records {shape}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout = {dropout:g}: must be a number in [0, 1)")
    return ResNet(blocks, channels=shape[0], outputs=outputs, dropout=dropout)
