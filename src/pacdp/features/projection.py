"""Principal directions of public features, and a length of one for every record.

Noise grows with the root of the number of weights, and a bound on a gradient is a bound on a
record's length: few directions of equal worth, in records of one length, waste least of a budget.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Projection:
    """The middle of public features, their directions of most spread, and that spread.

    >>> turned = Projection(torch.ones(2), torch.eye(2).flip(1), torch.ones(2))
    >>> turned(torch.tensor([[3.0, 5.0]])).tolist()
    [[4.0, 2.0]]
    """

    middle: Tensor
    directions: Tensor
    """(features, dimensions), the one with most spread first."""
    spread: Tensor
    """Variance along each of them."""

    def __call__(self, features: Tensor) -> Tensor:
        """Where records lie along the directions."""
        return (features - self.middle) @ self.directions


def principal(features: Tensor, dimensions: int) -> Projection:
    """The directions in which public features spread most; the middle is theirs, too.

    >>> values = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> found = principal(values, 1)
    >>> found.directions.abs().round().tolist(), found.spread.tolist()
    ([[1.0], [0.0]], [4.5])
    """
    middle = features.mean(0)
    centred = (features - middle).double()
    most = min(dimensions, *centred.shape)
    if centred.shape[0] >= centred.shape[1]:
        spread, turn = torch.linalg.eigh(centred.T @ centred / len(centred))
        directions = turn.flip(1)[:, :most]
    else:
        # Fewer records than features: the smaller matrix has the same spread.
        spread, turn = torch.linalg.eigh(centred @ centred.T / len(centred))
        directions = functional.normalize(centred.T @ turn.flip(1)[:, :most], dim=0)
    spread = spread.flip(0)[:most].clamp(min=1e-12)
    # An eigenvector has two signs; the largest entry decides, so that machines agree.
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return Projection(middle, (directions * largest.sign()).float(), spread.float())


def shaped(
    values: Tensor, spread: Tensor | None, *, dimension: int | None, whitening: float
) -> Tensor:
    """The first directions, more or less equally spread, each record of length one.

    >>> shaped(torch.tensor([[3.0, 4.0]]), None, dimension=None, whitening=0.0).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    kept = values[:, :dimension]
    if spread is not None and whitening:
        kept = kept * spread[:dimension] ** (-whitening / 2)
    return functional.normalize(kept, dim=1)
