"""What each client releases according to the plan, and from what its noise is calibrated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field, NonNegativeInt, PositiveInt

from pacdp.config import Settings
from pacdp.privacy import Adjacency, LevelTerms, Scope


class ReleaseSpec(Settings):
    """One kind of release in a participation, and how often it can depend on a single record."""

    noise_multiplier: float
    """σ/C."""
    sensitivity: float
    """S/C."""
    each: PositiveInt
    """Releases per record in each participation."""
    sampling_rate: float = 1.0
    """Probability with which each record is sampled, hidden from the server."""
    levels: tuple[LevelTerms, ...] = Field((), exclude_if=lambda levels: not levels)
    """Bound and sampling rate of each budget level; empty where all records are alike."""

    @property
    def z(self) -> float:
        """σ/S."""
        return self.noise_multiplier / self.sensitivity

    @property
    def ratios(self) -> tuple[float, ...]:
        """C_j/C of each budget level; empty where all records are alike."""
        return tuple(terms.ratio for terms in self.levels)

    @property
    def sampling_rates(self) -> tuple[float, ...]:
        """The sampling rate of each budget level that takes part, or the one of all records."""
        rates = tuple(terms.sampling_rate for terms in self.levels if terms.ratio)
        return rates or (self.sampling_rate,)

    @property
    def sampled(self) -> bool:
        """Whether records of any level are sampled."""
        return min(self.sampling_rates) < 1


class LevelPlan(Settings):
    """One budget level of a client: the ε of its records, and how many there are."""

    epsilon: float
    """The declared ε."""
    budget: float
    """The ε that a record of this level has here: the declared one, capped by the client's."""
    units: NonNegativeInt
    """Units (usually records) of this level; which ones is known to the client only."""


class ClientPlan(Settings):
    """One client's part of the plan, all of it public."""

    name: str
    records: PositiveInt
    units: PositiveInt
    """What is clipped as a whole: records, or the persons to whom they belong."""
    budget: float | None
    """The requested ε; None where the method has no guarantee."""
    epsilon: float
    """The ε to which the noise is calibrated."""
    participations: PositiveInt
    """The maximum number of participations."""
    batches: PositiveInt
    """Batches in one pass over the records."""
    steps: PositiveInt
    """Local steps in a participation."""
    divisor: float
    """The public number by which a sum is divided: the units of a batch, where there are levels
    each weighted by C_j/C and its sampling rate."""
    charges: tuple[ReleaseSpec, ...]
    """The releases of a participation; none where the method adds no noise."""
    levels: tuple[LevelPlan, ...] = Field((), exclude_if=lambda levels: not levels)
    """The budget levels of the client's records; empty where all have the client's budget."""

    @property
    def passes(self) -> int:
        """Passes over the records in a participation."""
        return math.ceil(self.steps / self.batches)

    @property
    def each(self) -> int:
        """Releases per record in a participation."""
        return sum(spec.each for spec in self.charges)

    @property
    def releases(self) -> int:
        """K_i: releases per record over the whole training."""
        return self.each * self.participations

    @property
    def declared_levels(self) -> tuple[float, ...]:
        """The declared ε of each budget level."""
        return tuple(level.epsilon for level in self.levels)

    @property
    def effective_records(self) -> float:
        """The number of records, each counted by its clipping bound over the largest."""
        weighted = sum(
            terms.ratio * level.units
            for terms, level in zip(self.level_terms, self.levels, strict=True)
        )
        return weighted * self.records / self.units if self.levels else float(self.records)

    @property
    def level_terms(self) -> tuple[LevelTerms, ...]:
        """What the model's releases are to the records of each budget level."""
        if not self.charges:
            return (LevelTerms(1.0),) * len(self.levels)
        spec = self.charges[0]
        return spec.levels or (LevelTerms(1.0, spec.sampling_rate),) * len(self.levels)

    @property
    def noise_multiplier(self) -> float | None:
        """σ/C of the model's releases; None without noise."""
        return self.charges[0].noise_multiplier if self.charges else None


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """The public facts from which a client's noise is calibrated."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str | None
    scope: Scope
    participations: int
    """Maximum number of participations."""
    passes: int
    """Passes over the client's records in each participation."""
    steps: int
    """Local steps in each participation."""
    records: int
    budgets: Sequence[float]
    """The largest ε that each client uses: its budget, or its largest level that has records."""
    levels: Sequence[float] = ()
    """The ε that the method uses of each budget level, 0 where it leaves its records out."""
