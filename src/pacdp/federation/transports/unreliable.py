"""Simulated client failures."""

from collections.abc import Sequence

import numpy as np

from pacdp.errors import InputError
from pacdp.federation.messages import Answers, Broadcast, Refusal
from pacdp.federation.transports.base import Transport


class UnreliableTransport:
    """Loses clients with a given probability: half of them before they pay, half afterwards.

    A client that fails afterwards has paid for a release that is lost.
    """

    def __init__(self, transport: Transport, *, failure_rate: float, seed: int) -> None:
        if not 0 <= failure_rate < 1:
            raise InputError(f"failure_rate = {failure_rate:g}: must be a number in [0, 1)")
        self._transport, self._rate, self._seed = transport, failure_rate, seed

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Return the answers of the clients that do not fail."""
        drawn = {
            who: np.random.default_rng([self._seed, broadcast.round, who, 1]).random()
            for who in client_ids
        }
        reached = [who for who in client_ids if drawn[who] >= self._rate / 2]
        answers = self._transport.ask(broadcast, reached)
        return {
            who: answer
            for who, answer in answers.items()
            if isinstance(answer, Refusal) or drawn[who] >= self._rate
        }
