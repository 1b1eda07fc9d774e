"""The interface of a ledger, and a ledger that is kept in memory.

A simulation makes thousands of releases that never leave the machine. Its ledgers are kept in
memory, with the same arithmetic and the same refusals as those in files.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

from pacdp.errors import BudgetExceededError
from pacdp.privacy.filter import Filter, Tally, tally
from pacdp.privacy.guarantee import Guarantee
from pacdp.privacy.releases import Release


class Ledger(Protocol):
    """A budget, and the releases debited from it before they are computed."""

    @property
    def durable(self) -> bool:
        """Whether debits outlive the process; if so, noise must never be seeded."""

    @property
    def filter(self) -> Filter:
        """The budget and what is spent of it."""

    def reserve(
        self, *releases: Release, run: str, label: str = "", at_most: int | None = None
    ) -> object:
        """Debit releases, all or none, before they are computed.

        Raises BudgetExceededError if they would exceed the budget, or if the run would then have
        made more than ``at_most`` releases.
        """

    def freeze(self, plan: Release, *, run: str, label: str = "") -> object:
        """Charge a Poisson-sampled plan as a whole, before anything is released."""

    def count_releases(self, run: str) -> Tally:
        """Count the releases that the run has made so far."""


class MemoryLedger:
    """A ledger that lasts as long as the process, for simulations.

    >>> from pacdp.privacy import Adjacency, calibrate
    >>> ledger = MemoryLedger(Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT))
    >>> ledger.reserve(calibrate(epsilon=0.5, releases=13).release(), run="first")
    >>> ledger.count_releases("first").total(), str(ledger.filter.realised)
    (13, 'ε = 0.5 at δ = 1e-05, zero-out (exact)')
    """

    durable = False

    def __init__(
        self,
        budget: Guarantee,
        *,
        levels: Sequence[float] = (),
        level_budgets: Sequence[float] = (),
    ) -> None:
        """``levels`` are the declared ε of budget levels; ``level_budgets``, if they differ."""
        self.filter = Filter(budget, levels=tuple(levels), level_budgets=tuple(level_budgets))
        self._runs: defaultdict[str, Tally] = defaultdict(Counter)
        # Threads may share a ledger: the check and the debit must be one step.
        self._lock = threading.Lock()

    def reserve(
        self, *releases: Release, run: str, label: str = "", at_most: int | None = None
    ) -> None:
        """Debit releases, all or none; over the budget, or the run's number, they are refused."""
        with self._lock:
            refuse_excess(releases, self._runs[run], run=run, at_most=at_most)
            self.filter = self.filter.spend(*releases)
            self._runs[run] += tally(releases)

    def freeze(self, plan: Release, *, run: str, label: str = "") -> None:
        """Charge a Poisson-sampled plan as a whole, before anything is released."""
        with self._lock:
            self.filter = self.filter.freeze(plan)

    def count_releases(self, run: str) -> Tally:
        """Count the releases that the run has made so far."""
        return Counter(self._runs[run])


def refuse_excess(
    releases: Sequence[Release], made: Tally, *, run: str, at_most: int | None
) -> None:
    """Raise BudgetExceededError if a run would make more than ``at_most`` releases."""
    wanted = sum(release.count for release in releases)
    if at_most is not None and made.total() + wanted > at_most:
        raise BudgetExceededError(
            f"the run {run} has made {made.total()} releases of {at_most} planned, and asks for "
            f"{wanted}"
        )
