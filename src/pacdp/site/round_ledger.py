"""The ledger as a client sees it in one round, which is debited at most once."""

from pacdp.errors import BudgetExceededError
from pacdp.privacy import Filter, Release, RoundRequest, SQLiteLedger, Tally
from pacdp.privacy.filter import tally


class RoundLedger:
    """A :class:`~pacdp.privacy.Ledger` whose debits are for one round and one broadcast.

    A round that was debited before, and not answered because the process was killed, is computed
    again without a second debit: nothing of the first computation has left. Its releases, and with
    them the noise, must be those that were debited. To that end :meth:`count_releases` counts what
    had been released when it was debited.
    """

    durable = True

    def __init__(self, ledger: SQLiteLedger, request: RoundRequest) -> None:
        self.client = ledger.client
        self._ledger, self._request = ledger, request
        self._paid = ledger.find_round(request.run, request.round)

    @property
    def filter(self) -> Filter:
        """The budget and what is spent of it."""
        return self._ledger.filter

    def reserve(
        self, *releases: Release, run: str, label: str = "", at_most: int | None = None
    ) -> None:
        """Debit the round; if it was debited before, only accept the same releases."""
        if self._paid is None:
            self._ledger.reserve(
                *releases, run=run, label=label, at_most=at_most, request=self._request
            )
        elif (self._paid.request, self._paid.releases) != (self._request, releases):
            raise BudgetExceededError("the round was debited for something else")

    def freeze(self, plan: Release, *, run: str, label: str = "") -> None:
        """Charge a Poisson-sampled plan as a whole, before anything is released."""
        self._ledger.freeze(plan, run=run, label=label)

    def count_releases(self, run: str) -> Tally:
        """Count the releases that the run had made when this round was debited, or until now."""
        if self._paid is None:
            return self._ledger.count_releases(run)
        first = self._paid.sequence
        return tally(
            entry.release
            for entry in self._ledger.entries
            if entry.kind == "release" and entry.content["run"] == run and entry.sequence < first
        )
