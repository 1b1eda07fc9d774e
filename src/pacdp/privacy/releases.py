"""Releases: what left a client with noise. Accountants say what releases cost."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

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


class LevelTerms(NamedTuple):
    """What a release is to the records of one budget level."""

    ratio: float
    """C_j/C, the level's clipping bound over the largest; 0 if its records have no part in it."""
    sampling_rate: float = 1.0


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

    Where records have budgets of their own, ``levels`` says for each budget level how far its
    records can move the query, and how they are sampled; :meth:`at_level` is what the release is to
    a record of that level. Without levels, all records are alike.

    >>> Release.clipped_sum(noise_multiplier=10, count=13, adjacency=Adjacency.REPLACE_ONE).z
    5.0
    """

    noise_multiplier: float
    sensitivity: float
    adjacency: Adjacency
    count: int = 1
    sampling_rate: float = 1.0
    unit: str = "record"
    levels: tuple[LevelTerms, ...] = ()

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
        self._check_levels()
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        if self.sampled and replaced and self.sensitivity != self.adjacency.sensitivity:
            # Whether a record was drawn is visible as well. That depends on how large its
            # contribution is, which does not follow from the distance of two contributions.
            raise InputError(
                "sampling_rate: under replace-one only clipped sums (sensitivity 2) are covered"
            )

    def _check_levels(self) -> None:
        levels = tuple(LevelTerms(*terms) for terms in self.levels)
        object.__setattr__(self, "levels", levels)
        if not levels:
            return
        if self.sampling_rate != 1:
            raise InputError("sampling_rate: must be 1 where each level has its own")
        for terms in levels:
            require_scalar("sampling_rate", require_rate("sampling_rate", terms.sampling_rate))
            if not 0 <= terms.ratio <= 1:
                raise InputError(f"levels: C_j/C = {terms.ratio!r}: must be from 0 to 1")
        if not any(terms.ratio for terms in levels):
            raise InputError("levels: no level has a part in the release, at least one must have")

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
        return self.sampling_rate < 1 or any(terms.sampling_rate < 1 for terms in self.levels)

    @property
    def smallest_ratio(self) -> float:
        """The smallest C_j/C of the levels that have a part in the release; 1 without levels."""
        return min((terms.ratio for terms in self.levels if terms.ratio), default=1.0)

    def at_level(self, level: int) -> "Release | None":
        """Return what the release is to a record of a level; None if it has no part in it.

        >>> noisy = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT)
        >>> with_levels = replace(noisy, levels=(LevelTerms(0.1), LevelTerms(1.0)))
        >>> with_levels.at_level(0).z, with_levels.at_level(1) == noisy
        (100.0, True)
        """
        if not self.levels:
            return self
        return _at_level(self, level)

    def times(self, count: int) -> "Release":
        """Return the same release, made ``count`` times.

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
        content = asdict(self) | {"adjacency": self.adjacency.value}
        del content["levels"]
        if self.levels:
            content["levels"] = [list(terms) for terms in self.levels]
        return content


@lru_cache(maxsize=4096)
def _times(release: Release, count: int) -> Release:
    # Every debit asks for this, of the same few releases, and validating them again takes longer.
    return replace(release, count=count)


@lru_cache(maxsize=4096)
def _at_level(release: Release, level: int) -> Release | None:
    if level >= len(release.levels):
        raise InputError(f"level {level}: is not one of the {len(release.levels)} of the release")
    terms = release.levels[level]
    if not terms.ratio:
        return None
    return replace(
        release,
        noise_multiplier=release.noise_multiplier / terms.ratio,
        sampling_rate=terms.sampling_rate,
        levels=(),
    )


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
