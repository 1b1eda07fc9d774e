"""What happened: the releases a record can influence. What they cost is the accountants' part."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from pacdp.checks import count, positive, rate
from pacdp.privacy.guarantee import Adjacency


@dataclass(frozen=True, kw_only=True)
class Release:
    """Values that left the client with Gaussian noise: a bounded query of its records.

    A release is counted once for each time that one record can influence it. A client that makes
    E passes over its records per participation, in whatever fixed batches, makes E of them.

    ``noise_multiplier`` is σ/C, noise over clipping bound, whatever the adjacency; ``sensitivity``
    is S/C, how far one record can move the query under ``adjacency``; ``z`` = σ/S is what the
    accounting needs. ``sampling_rate`` is the probability q with which each record was drawn by
    Poisson sampling, unseen by the server; 1 means that every record took part.

    >>> Release.clipped_sum(noise_multiplier=10, count=13, adjacency=Adjacency.REPLACE_ONE).z
    5.0
    """

    noise_multiplier: float
    sensitivity: float
    adjacency: Adjacency
    count: int = 1
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "noise_multiplier": float(positive("noise_multiplier", self.noise_multiplier)),
            "sensitivity": float(positive("sensitivity", self.sensitivity)),
            "adjacency": Adjacency.parse(self.adjacency),
            "count": int(count("releases", self.count)),
            "sampling_rate": float(rate("sampling_rate", self.sampling_rate)),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def clipped_sum(
        cls,
        *,
        noise_multiplier: float,
        adjacency: Adjacency,
        count: int = 1,
        sampling_rate: float = 1.0,
    ) -> Self:
        """A sum of per-example gradients clipped to C: S = C under zero-out, 2C under replace-one.

        >>> Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT).sensitivity
        1.0
        """
        return cls(
            noise_multiplier=noise_multiplier,
            sensitivity=Adjacency.parse(adjacency).sensitivity,
            adjacency=adjacency,
            count=count,
            sampling_rate=sampling_rate,
        )

    @property
    def z(self) -> float:
        """Noise over sensitivity, σ/S."""
        return self.noise_multiplier / self.sensitivity

    @property
    def sampled(self) -> bool:
        """Whether records were Poisson-sampled, so that only some accountants apply."""
        return self.sampling_rate < 1

    def times(self, count: int) -> Self:
        """The same release, made ``count`` times.

        >>> Release.clipped_sum(noise_multiplier=1, adjacency=Adjacency.ZERO_OUT).times(5).count
        5
        """
        return replace(self, count=count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``Release(**values)`` reads them back.

        >>> release = Release.clipped_sum(noise_multiplier=3, adjacency=Adjacency.ZERO_OUT)
        >>> Release(**release.to_dict()) == release
        True
        """
        return {
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "adjacency": self.adjacency.value,
            "count": self.count,
            "sampling_rate": self.sampling_rate,
        }


def total_mu(releases: Iterable[Release]) -> float:
    """μ = √(Σ 1/z²) of releases without sampling: exact, whatever their order and multipliers.

    >>> noises = (20, 30, 40, 25)
    >>> zero_out = Adjacency.ZERO_OUT
    >>> releases = [Release.clipped_sum(noise_multiplier=n, adjacency=zero_out) for n in noises]
    >>> round(total_mu(releases), 8)
    0.07639444
    """
    # fsum is correctly rounded, so neither order nor grouping changes the total. Dividing twice
    # lets an absurdly small z overflow to infinity, which the accountants refuse, and not to 1/0.
    return math.sqrt(math.fsum(release.count / release.z / release.z for release in releases))
