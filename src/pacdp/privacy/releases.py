"""Releases: what left a client with noise. Accountants say what releases cost."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

from pacdp.errors import InputError
from pacdp.privacy.gaussian import LARGEST_MU
from pacdp.privacy.guarantee import Adjacency
from pacdp.validation import (
    require_count,
    require_name,
    require_positive,
    require_rate,
    require_scalar,
)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Values that left the client with Gaussian noise: a bounded query of its records.

    A release is counted once for each time that one record can influence it. A client that makes
    E passes over its records per participation, in whatever fixed batches, makes E of them. Where
    several records form one ``unit``, such as a patient, the sensitivity is that of a whole unit,
    and each batch and each sample must hold whole units.

    ``noise_multiplier`` is σ/C, noise over clipping bound, whatever the adjacency; ``sensitivity``
    is S/C, how far one record can move the query under ``adjacency``; ``z`` = σ/S is what the
    accounting needs. ``sampling_rate`` is the probability q with which each unit was drawn by
    Poisson sampling, unseen by the server; 1 means that every record took part.

    >>> Release.clipped_sum(noise_multiplier=10, count=13, adjacency=Adjacency.REPLACE_ONE).z
    5.0
    """

    noise_multiplier: float
    sensitivity: float
    adjacency: Adjacency
    count: int = 1
    sampling_rate: float = 1.0
    unit: str = "record"

    def __post_init__(self) -> None:
        checked = {
            "noise_multiplier": require_positive("noise_multiplier", self.noise_multiplier),
            "sensitivity": require_positive("sensitivity", self.sensitivity),
            "count": require_count("releases", self.count),
            "sampling_rate": require_rate("sampling_rate", self.sampling_rate),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, require_scalar(name, value))
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        require_name("unit", self.unit)
        require_positive("z", self.z)
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        if self.sampled and replaced and self.sensitivity != self.adjacency.sensitivity:
            # Whether a record was drawn is visible as well. That depends on how large its
            # contribution is, which does not follow from the distance of two contributions.
            raise InputError(
                "sampling_rate: under replace-one only clipped sums (sensitivity 2) are covered"
            )

    @classmethod
    def clipped_sum(
        cls,
        *,
        noise_multiplier: float,
        adjacency: Adjacency,
        count: int = 1,
        sampling_rate: float = 1.0,
        unit: str = "record",
    ) -> Self:
        """Describe a sum of gradients clipped to C: S = C under zero-out, 2C under replace-one.

        >>> Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT).sensitivity
        1.0
        """
        return cls(
            noise_multiplier=noise_multiplier,
            sensitivity=Adjacency.parse(adjacency).sensitivity,
            adjacency=adjacency,
            count=count,
            sampling_rate=sampling_rate,
            unit=unit,
        )

    @property
    def z(self) -> float:
        """Noise over sensitivity, σ/S."""
        return self.noise_multiplier / self.sensitivity

    @property
    def sampled(self) -> bool:
        """Whether records were Poisson-sampled, so that only some accountants apply."""
        return self.sampling_rate < 1

    def times(self, count: int) -> "Release":
        """Return the same release, made ``require_count`` times.

        >>> Release.clipped_sum(noise_multiplier=1, adjacency=Adjacency.ZERO_OUT).times(5).count
        5
        """
        if not isinstance(count, int):
            return replace(self, count=count)
        return self if count == self.count else _times(self, count)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``Release(**values)`` reads them back.

        >>> release = Release.clipped_sum(noise_multiplier=3, adjacency=Adjacency.ZERO_OUT)
        >>> Release(**release.to_dict()) == release
        True
        """
        return asdict(self) | {"adjacency": self.adjacency.value}


@lru_cache(maxsize=4096)
def _times(release: Release, count: int) -> Release:
    # Every debit asks for this, of the same few releases, and validating them again takes longer.
    return replace(release, count=count)


def total_mu(releases: Iterable[Release]) -> float:
    """Compute μ = √(Σ 1/z²) of releases without sampling, exact for any order and multipliers.

    >>> noises = (20, 30, 40, 25)
    >>> zero_out = Adjacency.ZERO_OUT
    >>> releases = [Release.clipped_sum(noise_multiplier=n, adjacency=zero_out) for n in noises]
    >>> round(total_mu(releases), 8)
    0.07639444
    """
    parts = [(release.count, 1 / release.z) for release in releases]
    largest = max((mu for _, mu in parts), default=0.0)
    if not largest:
        return 0.0
    # Relative to the largest, no square overflows or vanishes where it matters; fsum is correctly
    # rounded, so neither order nor grouping changes the total.
    total = largest * math.sqrt(math.fsum(count * (mu / largest) ** 2 for count, mu in parts))
    if total > LARGEST_MU:
        raise InputError("noise_multiplier: is so small that the cost cannot be represented")
    return total
