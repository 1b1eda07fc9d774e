"""The history of a run: what happened in each round, and how good the model is."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from pacdp.data import Records
from pacdp.errors import InputError
from pacdp.federation.evaluation import predict
from pacdp.federation.local_model import LocalModel
from pacdp.federation.results import RoundResult
from pacdp.federation.server import RoundOutcome, Server
from pacdp.privacy import Ledger


class History:
    """Collects the results of rounds, and evaluates the model on the test records, if any."""

    def __init__(
        self,
        server: Server,
        local_model: LocalModel,
        test: Records | None,
        ledgers: Sequence[Ledger | None],
        *,
        evaluate_every: int,
    ) -> None:
        self._server, self._local_model = server, local_model
        self._test = test
        self._inputs = None if test is None else test.inputs(local_model.device)
        self._every = evaluate_every
        self._predicted: NDArray[Any] | None = None
        self.ledgers = ledgers
        self.rows: list[RoundResult] = []
        self.refused: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Duration of the run so far."""
        return time.perf_counter() - self.started

    def after_round(self, outcome: RoundOutcome) -> None:
        """Add the result of a round, and count refusals and failures."""
        plan, seconds, metrics = self._server.plan, self.seconds, {}
        self._predicted = None
        evaluated = (outcome.round + 1) % self._every == 0 or outcome.round + 1 == plan.rounds
        if self._test is not None and evaluated:
            metrics = plan.task.quick_metrics(self.predict(), self._test.labels)
        result = RoundResult(
            round=outcome.round + 1,
            asked=len(outcome.asked),
            answered=len(outcome.answered),
            epsilon_spent=_largest_epsilon(self.ledgers),
            adjacency=plan.privacy.adjacency,
            seconds=seconds,
            clipping_bound=outcome.clipping_bound,
            metrics=metrics,
        )
        self.restore_round(outcome, result)

    def restore_round(self, outcome: RoundOutcome, result: RoundResult) -> None:
        """Add the known result of a round, and count refusals and failures."""
        self.refused.update(outcome.refused)
        self.failed.update(outcome.failed)
        self.rows.append(result)

    def predict(self) -> NDArray[Any]:
        """Predict the test records with the current model."""
        if self._inputs is None:
            raise InputError("predict: there are no test records")
        if self._predicted is None:
            self._local_model.load(self._server.model)
            task = self._server.plan.task
            self._predicted = predict(self._local_model.model, self._inputs, task)
        return self._predicted


def _largest_epsilon(ledgers: Sequence[Ledger | None]) -> float | None:
    """Return the largest ε that any client has been charged so far."""
    states = [ledger.filter for ledger in ledgers if ledger is not None]
    # A sampled plan is charged as a whole when it is frozen: at most its budget.
    frozen = [state.budget.epsilon for state in states if state.frozen]
    # All have the same δ, so the largest μ has the largest ε, and one conversion is enough.
    others = [state for state in states if not state.frozen]
    largest = sorted(others, key=lambda state: state.mu_charged)[-1:]
    return max([*frozen, *(state.realised.epsilon for state in largest)], default=None)
