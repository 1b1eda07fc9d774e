"""Algorithm 1 from beginning to end, in one process.

Clients are those of a real federation; only the noise is seeded and the books are kept in memory.
Clients with a durable ledger use the operating system's noise instead.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import nn

from pacdp.data import Dataset, Partition
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation.checkpoint import Checkpoint, CheckpointState
from pacdp.federation.client import require_ledger, simulated_noise
from pacdp.federation.engines.base import choose_engine
from pacdp.federation.evaluation import accuracy_by_client, predict
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.federation.plan import Plan
from pacdp.federation.results import Result, RoundResult
from pacdp.federation.rounds import Callback, run_rounds
from pacdp.federation.server import RoundOutcome, Server
from pacdp.federation.transports import InProcessTransport, UnreliableTransport
from pacdp.privacy import Ledger, Release
from pacdp.privacy.filter import list_releases

# Called with each round when it is over.
Observer = Callable[[RoundResult], None]


def simulate(
    plan: Plan,
    dataset: Dataset,
    partition: Partition,
    *,
    initial: Tensors | None = None,
    ledgers: Sequence[Ledger | None] | None = None,
    failure_rate: float = 0.0,
    evaluate_every: int = 1,
    on_round: Observer | None = None,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    make_model: Callable[[], nn.Module] | None = None,
    engine: str = "auto",
) -> Result:
    """Run the plan on the clients of a partition.

    ``ledgers`` are the clients' ledgers; by default they are kept in memory. With durable ledgers
    noise comes from the operating system, so no two runs are the same. ``failure_rate`` is the
    probability that a client that is asked fails: half of those before they have paid, half after,
    when the release is paid for and lost. With a ``checkpoint`` the run goes on where it stood.
    ``make_model`` gives a model of one's own. ``engine`` says how a round is computed
    (:mod:`pacdp.federation.engines.base`): the numbers are the same to rounding, and
    ``serial`` is for debugging.

    >>> from pacdp.data import load_dataset, partition_records
    >>> from pacdp.federation import Population, Privacy, Recipe, Training, make_plan
    >>> from pacdp.methods import build_method
    >>> data = load_dataset("heart")
    >>> hospitals = partition_records(data, "natural")
    >>> recipe = Recipe(
    ...     training=Training(rounds=3, local_steps=1), privacy=Privacy(epsilon=1.0)
    ... )
    >>> plan = make_plan(recipe, build_method("fixed"), Population.of(data, hospitals), seed=0)
    >>> result = simulate(plan, data, hospitals)
    >>> [round(client.epsilon_spent, 6) for client in result.clients()]
    [1.0, 1.0, 1.0, 1.0]
    """
    if checkpoint is not None and ledgers is not None:
        raise InputError("checkpoint: what ledgers have paid for cannot be done again")
    if ledgers is not None and len(ledgers) != len(plan.clients):
        raise InputError(f"ledgers: are {len(ledgers)}, must be {len(plan.clients)}, one a client")
    local_model = LocalModel(plan, device=device, make_model=make_model)
    ledgers = [
        require_ledger(plan, client, None if ledgers is None else ledgers[client])
        for client in range(len(plan.clients))
    ]
    computing = choose_engine(
        engine, local_model, make=lambda: LocalModel(plan, device=device, make_model=make_model)
    )
    first = local_model.state() if initial is None else initial
    # No client has this number.
    server = Server(plan, first, noise=simulated_noise(plan.seed, -1))
    history = _History(server, local_model, dataset, ledgers, evaluate_every=evaluate_every)
    callbacks: list[Callback] = [history]
    if checkpoint is not None:
        kept = _Checkpointing(checkpoint, server, history, engine=computing.name)
        kept.resume()
        callbacks.append(kept)
    if on_round is not None:
        callbacks.append(_Observing(history, on_round))
    transport = UnreliableTransport(
        InProcessTransport(
            local_model, partition.client_records(dataset), ledgers, engine=computing
        ),
        failure_rate=failure_rate,
        seed=plan.seed,
    )
    run_rounds(server, transport, callbacks, start=len(history.rows))
    if history.refused and not any(row.answered for row in history.rows):
        raise BudgetExceededError(
            f"{plan.run}: no client answered in any of {plan.rounds} rounds, so nothing was "
            f"trained; {sum(history.refused.values())} requests were refused"
        )
    predicted, labels = history.predict(), dataset.test.labels
    return Result(
        plan=plan,
        model=server.model,
        history=history.rows,
        metrics=plan.task.full_metrics(predicted, labels),
        chance=plan.task.baseline(labels),
        accuracies=accuracy_by_client(predicted, dataset, partition),
        ledgers=ledgers,
        seconds=history.seconds,
        refused=history.refused,
        failed=history.failed,
    )


class _History:
    """Writes a row for each round, with the model's metrics where it is evaluated."""

    def __init__(
        self,
        server: Server,
        local_model: LocalModel,
        dataset: Dataset,
        ledgers: Sequence[Ledger | None],
        *,
        evaluate_every: int,
    ) -> None:
        self._server, self._local_model = server, local_model
        self._inputs = dataset.test.inputs(local_model.device)
        self._labels = dataset.test.labels
        self._every = evaluate_every
        self._predicted: NDArray[Any] | None = None
        self.ledgers = ledgers
        self.rows: list[RoundResult] = []
        self.refused: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return time.perf_counter() - self.started

    def after_round(self, outcome: RoundOutcome) -> None:
        """Count who refused and who failed, and add the round's row."""
        plan = self._server.plan
        self.refused.update(outcome.refused)
        self.failed.update(outcome.failed)
        seconds, metrics, self._predicted = self.seconds, {}, None
        if (outcome.round + 1) % self._every == 0 or outcome.round + 1 == plan.rounds:
            metrics = plan.task.quick_metrics(self.predict(), self._labels)
        self.rows.append(
            RoundResult(
                round=outcome.round + 1,
                asked=len(outcome.asked),
                answered=len(outcome.answered),
                epsilon_spent=_spent(self.ledgers),
                adjacency=plan.privacy.adjacency,
                seconds=seconds,
                clipping_bound=outcome.clipping_bound,
                metrics=metrics,
            )
        )

    def predict(self) -> NDArray[Any]:
        """What the model answers to the test records."""
        if self._predicted is None:
            self._local_model.load(self._server.model)
            task = self._server.plan.task
            self._predicted = predict(self._local_model.model, self._inputs, task)
        return self._predicted


class _Checkpointing:
    """Saves the whole state after each round, and takes up a run where it was saved."""

    def __init__(
        self, checkpoint: Checkpoint, server: Server, history: _History, *, engine: str
    ) -> None:
        self._checkpoint, self._server, self._history = checkpoint, server, history
        self._engine = engine

    def resume(self) -> None:
        """Bring server, ledgers and history to where the last saved round left them."""
        saved, history = self._checkpoint.load(), self._history
        if saved is None:
            return
        if saved.engine != self._engine:
            raise InputError(f"engine = {self._engine}: must be {saved.engine}, as it was begun")
        self._server.restore(saved.server)
        _replay(self._server.plan, history.ledgers, saved.made)
        history.rows = [RoundResult.from_json(row) for row in saved.history]
        history.refused.update(saved.refused)
        history.failed.update(saved.failed)
        history.started -= saved.seconds

    def after_round(self, outcome: RoundOutcome) -> None:
        """Replace the checkpoint."""
        history = self._history
        self._checkpoint.save(
            CheckpointState(
                round=outcome.round + 1,
                server=self._server.state(),
                engine=self._engine,
                made=_made(self._server.plan, history.ledgers),
                refused=dict(history.refused),
                failed=dict(history.failed),
                history=[row.to_json() for row in history.rows],
                seconds=history.seconds,
            )
        )


class _Observing:
    """Tells an observer each row."""

    def __init__(self, history: _History, observe: Observer) -> None:
        self._history, self._observe = history, observe

    def after_round(self, outcome: RoundOutcome) -> None:
        """Pass the newest row on."""
        self._observe(self._history.rows[-1])


def _made(plan: Plan, ledgers: Sequence[Ledger | None]) -> dict[int, list[dict[str, Any]]]:
    """The releases that each client has paid for."""
    return {
        number: [release.to_dict() for release in list_releases(ledger.count_releases(plan.run))]
        for number, ledger in enumerate(ledgers)
        if ledger is not None
    }


def _replay(
    plan: Plan, ledgers: Sequence[Ledger | None], made: Mapping[int, list[dict[str, Any]]]
) -> None:
    """Bring new books to where they stood."""
    for number, releases in made.items():
        ledger = ledgers[number]
        if ledger is None or not releases:
            continue
        for release in plan.planned_releases(number):
            if release.sampled:
                whole = release.times(release.count * plan.clients[number].participations)
                ledger.freeze(whole, run=plan.run, label=plan.label)
        again = [Release(**values) for values in releases]
        ledger.reserve(*again, run=plan.run, label=plan.label)


def _spent(ledgers: Sequence[Ledger | None]) -> float | None:
    """The most that any client has been charged so far."""
    states = [ledger.filter for ledger in ledgers if ledger is not None]
    # A sampled plan is charged as a whole when it is frozen: at most its budget.
    whole = [state.budget.epsilon for state in states if state.frozen]
    single = [state for state in states if not state.frozen]
    # Under one δ the largest μ is the largest ε, and inverting one curve is enough.
    largest = sorted(single, key=lambda state: state.mu_charged)[-1:]
    return max([*whole, *(state.realised.epsilon for state in largest)], default=None)
