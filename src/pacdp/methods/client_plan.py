"""What each client releases according to the plan, and from what its noise is calibrated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import PositiveInt

from pacdp.config import Settings
from pacdp.privacy import Adjacency, Scope


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

    @property
    def z(self) -> float:
        """σ/S."""
        return self.noise_multiplier / self.sensitivity


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
    """The public number by which a sum is divided: the units of a batch."""
    charges: tuple[ReleaseSpec, ...]
    """The releases of a participation; none where the method adds no noise."""

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
    """The budgets of all clients."""
