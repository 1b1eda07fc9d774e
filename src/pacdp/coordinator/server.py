"""A server that stores its broadcasts and results in the log of the run."""

from collections.abc import Callable

import torch

from pacdp.coordinator.log import RunLog
from pacdp.errors import DataError
from pacdp.federation import Broadcast, RoundResult, Server
from pacdp.federation.history import History
from pacdp.federation.local_model import Tensors
from pacdp.federation.server import RoundOutcome
from pacdp.federation.wire import Wire
from pacdp.keys import Sign


class LoggedServer(Server):
    """Commits each broadcast to the log before it is sent, and reuses those already in the log.

    A broadcast in the log must be consistent with the answers before it.
    """

    # A few finite updates of 1e38 would make the model infinite, and no further round could be run.
    largest_update = 2.0**100

    def __init__(
        self, wire: Wire, initial: Tensors, log: RunLog, *, sign: Sign, rounds: int
    ) -> None:
        super().__init__(wire.plan, initial)
        self._wire, self._log, self._sign, self._rounds = wire, log, sign, rounds

    @property
    def rounds(self) -> int:
        """The number of rounds to run: all of the plan's, or those in the log."""
        return self._rounds

    def broadcast(self, round: int) -> Broadcast:  # noqa: A002
        """Return the broadcast of a round, from the log if it is there."""
        asked = self.participants(round)
        if not asked:
            return super().broadcast(round)
        frame = self._log.find_broadcast(round)
        if frame is None:
            broadcast = super().broadcast(round)
            self._log.add_broadcast(round, self._wire.encode_broadcast(broadcast, sign=self._sign))
            return broadcast
        # The key that signed it may have been replaced since, so only the content is checked.
        sent = self._wire.decode_broadcast(frame, client=asked[0], verify=lambda *_: True)
        if sent.round != round or not self._follows(sent):
            raise DataError(
                f"{self._log.path}: the broadcast of round {round + 1} does not follow from the "
                "answers before it"
            )
        for name, value in self._model.items():
            # The model in a broadcast may contain noise that cannot be recomputed.
            value.copy_(sent.model[name])
        return sent

    def _follows(self, sent: Broadcast) -> bool:
        if sent.shared_state != self.shared_state:
            return False
        return bool(self._broadcast_noise) or all(
            torch.equal(value, sent.model[name]) for name, value in self._model.items()
        )


class Recorder:
    """Stores the result of each round in the log, and never evaluates a round twice."""

    def __init__(
        self, history: History, log: RunLog, on_round: Callable[[RoundResult], None]
    ) -> None:
        self._history, self._log, self._on_round = history, log, on_round
        self._known = log.results()
        if self._known:
            history.started -= self._known[-1].seconds

    def after_round(self, outcome: RoundOutcome) -> None:
        """Add the result of a round, from the log if it is there."""
        if outcome.round < len(self._known):
            self._history.restore_round(outcome, self._known[outcome.round])
            return
        self._history.after_round(outcome)
        self._log.add_result(self._history.rows[-1])
        self._on_round(self._history.rows[-1])
