"""The round loop: ask, combine, and tell the callbacks. There is no other."""

from collections.abc import Sequence
from typing import Protocol

from pacdp.federation.messages import Answers, Broadcast
from pacdp.federation.server import RoundOutcome
from pacdp.federation.transports.base import Transport


class Callback(Protocol):
    """Anything that happens after a round: evaluation, checkpoints, progress, logging."""

    def after_round(self, outcome: RoundOutcome) -> None:
        """Called once for each round, when the server's model has moved."""


class RoundServer(Protocol):
    """What the loop needs of a server."""

    @property
    def rounds(self) -> int:
        """How many rounds are planned."""

    def participants(self, round: int) -> Sequence[int]:  # noqa: A002
        """The clients that are asked in a round."""

    def broadcast(self, round: int) -> Broadcast:  # noqa: A002
        """What is sent to them."""

    def complete_round(
        self,
        round: int,  # noqa: A002
        asked: Sequence[int],
        answers: Answers,
    ) -> RoundOutcome:
        """Combine what came back."""


def run_rounds(
    server: RoundServer,
    transport: Transport,
    callbacks: Sequence[Callback] = (),
    *,
    start: int = 0,
) -> None:
    """Run all rounds from ``start`` on: ask the clients, combine their answers, call back."""
    for number in range(start, server.rounds):
        client_ids = server.participants(number)
        answers = transport.ask(server.broadcast(number), client_ids)
        outcome = server.complete_round(number, client_ids, answers)
        for callback in callbacks:
            callback.after_round(outcome)
