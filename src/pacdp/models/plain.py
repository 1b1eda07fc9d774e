"""Sequential models, and a small recurrent one.

The paper's CNN ends in a log-softmax; here it is part of the loss, which gives the same gradient.
"""

import math

import torch
from torch import Tensor, nn

from pacdp.errors import InputError
from pacdp.validation import require_count

Shape = tuple[int, ...]


def logistic(shape: Shape, outputs: int, *, bias: bool = True) -> nn.Sequential:
    """Build a (multinomial) logistic regression.

    >>> logistic((13,), 2)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=13, out_features=2, bias=True)
    )
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs, bias=bias))


def mlp(shape: Shape, outputs: int, *, hidden: int = 16) -> nn.Sequential:
    """Build a network with one hidden layer, the paper's DNN for Heart Disease."""
    require_count("hidden", hidden)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(math.prod(shape), hidden)),
        *(nn.ReLU(), nn.Linear(hidden, outputs)),
    )


def cnn(shape: Shape, outputs: int) -> nn.Sequential:
    """Build the paper's CNN, two convolutions with ReLU and max-pooling.

    >>> sum(p.numel() for p in cnn((1, 28, 28), 10).parameters())
    21840
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise InputError(f"model cnn: takes images of at least 16 x 16, not records {shape}")
    channels, *sides = shape
    high, wide = (((side - 4) // 2 - 4) // 2 for side in sides)
    return nn.Sequential(
        *(nn.Conv2d(channels, 10, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(20 * high * wide, 50), nn.ReLU(), nn.Linear(50, outputs)),
    )


class Sequence(nn.Module):
    """An embedding, a GRU, and a linear layer on its last output; records are rows of tokens."""

    def __init__(self, outputs: int, *, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return class scores."""
        return torch.as_tensor(self.head(self.recurrent(self.embedding(tokens))[0][:, -1]))


def sequence(
    shape: Shape, outputs: int, *, vocabulary: int = 80, width: int = 16, hidden: int = 64
) -> Sequence:
    """Build a sequence model for rows of token numbers below ``vocabulary``."""
    if len(shape) != 1:
        raise InputError(f"model sequence: takes rows of tokens, not records {shape}")
    for name, value in (("vocabulary", vocabulary), ("width", width), ("hidden", hidden)):
        require_count(name, value)
    return Sequence(outputs, vocabulary=vocabulary, width=width, hidden=hidden)
