"""The round loop, shared by all servers, transports and engines."""

from collections.abc import Sequence
from typing import Protocol

from pacdp.federation.messages import Answers, Broadcast
from pacdp.federation.server import RoundOutcome
from pacdp.federation.transports.base import Transport


class Callback(Protocol):
    """Something that is done after each round: evaluation, checkpoints, progress, logging."""

    def after_round(self, outcome: RoundOutcome) -> None:
        """Called once for each round, after the server has updated its model."""


class RoundServer(Protocol):
    """The part of a server that the loop uses."""

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""

    def participants(self, round: int) -> Sequence[int]:  # noqa: A002
        """Return the clients that are asked in a round."""

    def broadcast(self, round: int) -> Broadcast:  # noqa: A002
        """Return what is sent to them."""

    def complete_round(
        self,
        round: int,  # noqa: A002
        asked: Sequence[int],
        answers: Answers,
    ) -> RoundOutcome:
        """Combine the answers."""


def run_rounds(
    server: RoundServer,
    transport: Transport,
    callbacks: Sequence[Callback] = (),
    *,
    start: int = 0,
) -> None:
    """Run all rounds from ``start``: ask clients, combine their answers, and call the callbacks."""
    for number in range(start, server.rounds):
        client_ids = server.participants(number)
        answers = transport.ask(server.broadcast(number), client_ids)
        outcome = server.complete_round(number, client_ids, answers)
        for callback in callbacks:
            callback.after_round(outcome)
