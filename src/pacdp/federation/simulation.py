"""Simulation of a whole federation (Algorithm 1) in one process.

The clients are those of a real federation, except that their noise is seeded and their ledgers are
kept in memory. Clients with a durable ledger use the operating system's noise instead.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from pacdp.data import Dataset, Partition
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation.checkpoint import Checkpoint, CheckpointState
from pacdp.federation.client import freeze_sampled, require_ledger, simulated_noise
from pacdp.federation.engines.base import choose_engine
from pacdp.federation.evaluation import accuracy_by_client, accuracy_by_level
from pacdp.federation.history import History
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.federation.plan import Plan
from pacdp.federation.results import Result, RoundResult
from pacdp.federation.rounds import Callback, run_rounds
from pacdp.federation.server import RoundOutcome, Server
from pacdp.federation.transports import InProcessTransport, UnreliableTransport
from pacdp.privacy import Ledger, Release
from pacdp.privacy.filter import list_releases

# Called with the result of each round.
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
    """Train a plan on the clients of a partition.

    By default the clients' ``ledgers`` are kept in memory. With durable ledgers noise comes from
    the operating system, so no two runs are the same. ``failure_rate`` is the probability that a
    client that is asked fails: half of them before they pay, the others afterwards, when a release
    is paid for and lost. ``on_round`` is called with the result of each round. With a
    ``checkpoint`` the run resumes after the last saved round. ``make_model`` builds a custom model.
    ``engine`` names the engine (:mod:`pacdp.federation.engines.base`): numbers are the same up to
    rounding, and ``serial`` is for debugging.

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
    given = [None] * len(plan.clients) if ledgers is None else ledgers
    if len(given) != len(plan.clients):
        raise InputError(f"ledgers: are {len(given)}, must be {len(plan.clients)}, one a client")
    local_model = LocalModel(plan, device=device, make_model=make_model)
    ledgers = [require_ledger(plan, client, ledger) for client, ledger in enumerate(given)]
    chosen_engine = choose_engine(engine, local_model)
    first_model = local_model.state() if initial is None else initial
    # No client has the number -1.
    server = Server(plan, first_model, noise=simulated_noise(plan.seed, -1))
    history = History(server, local_model, dataset.test, ledgers, evaluate_every=evaluate_every)
    callbacks: list[Callback] = [history]
    if checkpoint is not None:
        saver = _CheckpointSaver(checkpoint, server, history, engine=chosen_engine.name)
        saver.resume()
        callbacks.append(saver)
    if on_round is not None:
        callbacks.append(_Reporter(history, on_round))
    records = partition.client_records(dataset)
    transport = UnreliableTransport(
        InProcessTransport(local_model, records, ledgers, engine=chosen_engine),
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
        accuracy_by_level=accuracy_by_level(
            predicted, dataset, plan.privacy.records.levels if plan.privacy.records else ()
        ),
        ledgers=ledgers,
        seconds=history.seconds,
        refused=history.refused,
        failed=history.failed,
    )


class _CheckpointSaver:
    """Saves the whole state after each round, and resumes a run from it."""

    def __init__(
        self, checkpoint: Checkpoint, server: Server, history: History, *, engine: str
    ) -> None:
        self._checkpoint, self._server, self._history = checkpoint, server, history
        self._engine = engine

    def resume(self) -> None:
        """Restore server, ledgers and history after the last saved round."""
        saved, history = self._checkpoint.load(), self._history
        if saved is None:
            return
        if saved.engine != self._engine:
            raise InputError(f"engine = {self._engine}: must be {saved.engine}, as it was begun")
        self._server.restore(saved.server)
        _restore_ledgers(self._server.plan, history.ledgers, saved.made)
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
                made=_list_spent(self._server.plan, history.ledgers),
                refused=dict(history.refused),
                failed=dict(history.failed),
                history=[row.to_json() for row in history.rows],
                seconds=history.seconds,
            )
        )


class _Reporter:
    """Passes the result of each round on to a function."""

    def __init__(self, history: History, on_round: Observer) -> None:
        self._history, self._on_round = history, on_round

    def after_round(self, outcome: RoundOutcome) -> None:
        """Pass on the latest result."""
        self._on_round(self._history.rows[-1])


def _list_spent(plan: Plan, ledgers: Sequence[Ledger | None]) -> dict[int, list[dict[str, Any]]]:
    """List the releases that each client has paid for."""
    return {
        number: [release.to_dict() for release in list_releases(ledger.count_releases(plan.run))]
        for number, ledger in enumerate(ledgers)
        if ledger is not None
    }


def _restore_ledgers(
    plan: Plan, ledgers: Sequence[Ledger | None], spent: Mapping[int, list[dict[str, Any]]]
) -> None:
    """Charge new ledgers with the releases that were paid for before."""
    for number, releases in spent.items():
        ledger = ledgers[number]
        if ledger is not None and releases:
            freeze_sampled(plan, number, ledger, plan.planned_releases(number))
            again = [Release(**values) for values in releases]
            ledger.reserve(*again, run=plan.run, label=plan.label)
