"""The view of the ledger that a client uses in one round, which is debited at most once."""

from pacdp.errors import BudgetExceededError
from pacdp.privacy import Filter, Release, RoundRequest, SQLiteLedger, Tally
from pacdp.privacy.filter import tally


class RoundLedger:
    """A :class:`~pacdp.privacy.Ledger` whose debits are for one round and one broadcast.

    If the process was killed between debit and reply, the round is recomputed without a second
    debit: nothing from the first computation has been sent. The releases, and therefore the noise,
    must be those that were debited, so :meth:`count_releases` returns the count at that time.
    """

    durable = True

    def __init__(self, ledger: SQLiteLedger, request: RoundRequest) -> None:
        self.client = ledger.client
        self._ledger, self._request = ledger, request
        self._paid = ledger.find_round(request.run, request.round)

    @property
    def filter(self) -> Filter:
        """The budget and how much of it is spent."""
        return self._ledger.filter

    def reserve(
        self, *releases: Release, run: str, label: str = "", at_most: int | None = None
    ) -> None:
        """Debit the round; if it is debited already, accept only the same releases."""
        if self._paid is None:
            self._ledger.reserve(
                *releases, run=run, label=label, at_most=at_most, request=self._request
            )
        elif (self._paid.request, self._paid.releases) != (self._request, releases):
            raise BudgetExceededError("the round was debited for other releases")

    def freeze(self, plan: Release, *, run: str, label: str = "") -> None:
        """Charge a Poisson-sampled plan as a whole, before anything is released."""
        self._ledger.freeze(plan, run=run, label=label)

    def count_releases(self, run: str) -> Tally:
        """Count the run's releases before this round was debited, or so far if it was not."""
        if self._paid is None:
            return self._ledger.count_releases(run)
        first = self._paid.sequence
        return tally(
            entry.release
            for entry in self._ledger.entries
            if entry.kind == "release" and entry.content["run"] == run and entry.sequence < first
        )
