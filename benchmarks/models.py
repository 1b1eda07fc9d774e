"""The models that are measured: those of the paper, and a small sequence model."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def logistic() -> nn.Sequential:
    """Multinomial logistic regression on MNIST-sized records."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def mlp() -> nn.Sequential:
    """One hidden layer on MNIST-sized records."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def heart_mlp() -> nn.Sequential:
    """One hidden layer on thirteen features, as the paper has it for Heart Disease."""
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 2))


def cnn() -> nn.Sequential:
    """The paper's MNIST CNN: two convolutions, 21,840 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
    )


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(
        self, channels: int, out: int, stride: int, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(32, out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(32, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(32, out)
            )
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.activation(self.first_norm(self.first(x)))
        return self.activation(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 with GroupNorm and a 3×3 stem, for 32×32 images."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.stem_norm = nn.GroupNorm(32, 64)
        blocks, channels = [], 64
        for out, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
            blocks += [Block(channels, out, stride, activation), Block(out, out, 1, activation)]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, 10)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.activation(self.stem_norm(self.stem(x)))
        return torch.as_tensor(self.head(self.blocks(x).mean((2, 3))))


class Sequence(nn.Module):
    """Embedding, GRU, linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 16)
        self.recurrent = nn.GRU(16, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores."""
        return torch.as_tensor(self.head(self.recurrent(self.embedding(tokens))[0][:, -1]))
