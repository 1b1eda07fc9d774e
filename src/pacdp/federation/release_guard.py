"""The guard that every engine passes: only releases that were paid for may leave."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pacdp.errors import BudgetExceededError
from pacdp.federation.plan import Plan
from pacdp.privacy import Adjacency, LevelTerms, Release

# The units that a release depends on: their indices, or all of them.
Units = NDArray[np.int64] | slice
ALL_UNITS = slice(None)


class ReleaseGuard:
    """Compares the releases of one participation with what its client has paid for."""

    def __init__(self, plan: Plan, client: int, *, scale: float) -> None:
        self._client = plan.clients[client]
        self._paid = plan.planned_releases(client, scale=scale)
        self._times = np.zeros((len(self._paid), self._client.units), np.int64)

    def paid(self, index: int) -> Release:
        """Return the release that was paid for at this index; refused if there is none."""
        if index >= len(self._paid):
            raise BudgetExceededError(
                f"client {self._client.name}: has no budget for a release of index {index}; the "
                f"plan has {len(self._paid)}"
            )
        return self._paid[index]

    def authorize(
        self,
        index: int,
        *,
        adjacency: Adjacency,
        unit: str,
        sensitivity: float,
        sampling_rate: float,
        levels: tuple[LevelTerms, ...],
        units: Iterable[Units],
        divisor: float,
    ) -> None:
        """Allow a release of these units, once for each entry of ``units``, or refuse it.

        Adjacency, unit, sensitivity (S/C), sampling rate and the terms of budget levels must be as
        paid for, and no unit may contribute to more releases than were paid for. The divisor must
        be public: the plan's, or 1.
        """
        paid, name = self.paid(index), self._client.name
        terms = (adjacency, unit, sensitivity, sampling_rate, levels)
        expected = (*(paid.adjacency, paid.unit, paid.sensitivity), paid.sampling_rate, paid.levels)
        matches = terms == expected
        if matches:
            self._count(index, units)
        if not matches or self._times[index].max() > paid.count:
            raise BudgetExceededError(
                f"client {name}: this release was not paid for; the plan pays for {paid.count} "
                f"of each {paid.unit}"
            )
        if divisor not in (self._client.divisor, 1.0):
            raise BudgetExceededError(f"client {name}: the divisor must be the plan's, or 1")

    def _count(self, index: int, units: Iterable[Units]) -> None:
        times, listed = self._times[index], []
        for chosen in units:
            if isinstance(chosen, slice):
                times[chosen] += 1
            else:
                listed.append(chosen)
        if listed:
            times += np.bincount(np.concatenate(listed), minlength=len(times))
