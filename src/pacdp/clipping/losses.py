"""Losses that know their own gradient, one value per example.

Any function of (outputs, targets) that returns one loss per example will do. These also have a
method ``gradient(outputs, targets)``, the gradient of each loss by its outputs, in their shape and
with any number of dimensions in front. It spares the engine a pass through autograd.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pacdp.errors import InputError


@dataclass(frozen=True)
class CrossEntropy:
    """−ln softmax(outputs)[target] for class targets; outputs may be log-probabilities.

    >>> CrossEntropy()(torch.zeros(2, 4), torch.tensor([0, 3])).tolist()
    [1.386..., 1.386...]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(targets.shape == outputs.shape[:-1], self, outputs, targets, "one class each")
        return F.cross_entropy(outputs, targets, reduction="none")

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(targets.shape == outputs.shape[:-1], self, outputs, targets, "one class each")
        # torch's own softmax is slow for few classes.
        made = (outputs - outputs.amax(-1, keepdim=True)).exp_()
        made /= made.sum(-1, keepdim=True)
        return made.scatter_(-1, targets.unsqueeze(-1), -1.0, reduce="add")


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross-entropy of a single logit per example against a 0/1 target.

    >>> BinaryCrossEntropy()(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()
    [0.693..., 0.693...]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == (*targets.shape, 1), self, outputs, targets, "one logit each")
        logits = outputs.squeeze(-1)
        return F.binary_cross_entropy_with_logits(
            logits, targets.to(logits.dtype), reduction="none"
        )

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == (*targets.shape, 1), self, outputs, targets, "one logit each")
        return torch.sigmoid(outputs).sub_(targets.unsqueeze(-1))


@dataclass(frozen=True)
class SquaredError:
    """½·‖outputs − targets‖² for regression.

    >>> SquaredError()(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]])).tolist()
    [0.0, 2.0]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.gradient(outputs, targets).flatten(1).square().sum(1) / 2

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == targets.shape, self, outputs, targets, "the same shape")
        return outputs - targets


def _require(fits: bool, loss: object, outputs: Tensor, targets: Tensor, allowed: str) -> None:
    """Shapes must fit exactly: broadcasting would mix every example with every other."""
    if not fits:
        raise InputError(
            f"{type(loss).__name__}: outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)} must have {allowed}"
        )
