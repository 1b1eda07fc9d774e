"""Clients in this process, computed by an engine."""

from collections.abc import Sequence

from pacdp.data import Records
from pacdp.federation.client import Client, simulated_noise
from pacdp.federation.engines.base import Engine
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Answers, Broadcast
from pacdp.privacy import Ledger


class InProcessTransport:
    """Creates the clients of each round and lets an engine compute their answers.

    Clients whose ledger is kept in memory use noise from the plan's seed; those with a durable
    ledger use the operating system's.
    """

    def __init__(
        self,
        local_model: LocalModel,
        records: Sequence[Records],
        ledgers: Sequence[Ledger | None],
        *,
        engine: Engine,
    ) -> None:
        self._local_model, self._records, self._ledgers = local_model, records, ledgers
        self._engine = engine
        self._checked: set[int] = set()

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Return the answers of these clients, in their order."""
        return self._engine.answer({who: self._client(who) for who in client_ids}, broadcast)

    def _client(self, number: int) -> Client:
        # Created for one round, so that clients that are not asked take no memory.
        plan, ledger = self._local_model.plan, self._ledgers[number]
        durable = ledger is not None and ledger.durable
        client = Client(
            *(number, plan, self._records[number]),
            ledger=ledger,
            noise=None if durable else simulated_noise(plan.seed, number),
            local_model=self._local_model,
            checked=number in self._checked,
        )
        self._checked.add(number)
        return client
