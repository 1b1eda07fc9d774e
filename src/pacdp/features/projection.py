"""Principal directions of public features, and normalisation of records to length one.

Noise grows with the square root of the number of weights, and a bound on a gradient is a bound on a
record's length. Few directions of similar variance, and records of equal length, make the best use
of a budget.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Projection:
    """A projection onto the directions in which public features vary most.

    >>> swapped = Projection(torch.ones(2), torch.eye(2).flip(1), torch.ones(2))
    >>> swapped.transform(torch.tensor([[3.0, 5.0]])).tolist()
    [[4.0, 2.0]]
    """

    middle: Tensor
    """The mean of the features."""
    directions: Tensor
    """(features, dimensions), in the order of decreasing variance."""
    spread: Tensor
    """The variance along each direction."""

    @classmethod
    def fit(cls, features: Tensor, dimensions: int) -> "Projection":
        """Find at most ``dimensions`` principal directions of public features.

        >>> values = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> projection = Projection.fit(values, 1)
        >>> projection.directions.abs().round().tolist(), projection.spread.tolist()
        ([[1.0], [0.0]], [4.5])
        """
        middle = features.mean(0)
        centred = (features - middle).double()
        most = min(dimensions, *centred.shape)
        if centred.shape[0] >= centred.shape[1]:
            spread, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
            directions = vectors.flip(1)[:, :most]
        else:
            # With fewer records than features, the smaller Gram matrix has the same spectrum.
            spread, vectors = torch.linalg.eigh(centred @ centred.T / len(centred))
            directions = functional.normalize(centred.T @ vectors.flip(1)[:, :most], dim=0)
        spread = spread.flip(0)[:most].clamp(min=1e-12)
        # The sign of an eigenvector is arbitrary; its largest entry is made positive.
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        return cls(middle, (directions * largest.sign()).float(), spread.float())

    def transform(self, features: Tensor) -> Tensor:
        """Return the coordinates of records along the directions."""
        return (features - self.middle) @ self.directions


def normalise_rows(
    values: Tensor, spread: Tensor | None, *, dimension: int | None, whitening: float
) -> Tensor:
    """Keep the first directions, whiten them partly or fully, and scale rows to length one.

    >>> normalise_rows(torch.tensor([[3.0, 4.0]]), None, dimension=None, whitening=0.0).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    first = values[:, :dimension]
    if spread is not None and whitening:
        first = first * spread[:dimension] ** (-whitening / 2)
    return functional.normalize(first, dim=1)
