"""Algorithm 1 from beginning to end, in one process.

Clients are those of a real federation; only the noise is seeded and the books are kept in memory.
Clients with a durable ledger use the operating system's noise instead.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from pacdp.data import Dataset, Partition
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import metrics
from pacdp.federation.checkpoint import Checkpoint, Progress
from pacdp.federation.client import Client, checked_book, simulated_noise
from pacdp.federation.engines.base import EngineName, choose_engine
from pacdp.federation.local_model import Tensors, Workbench
from pacdp.federation.messages import Reply
from pacdp.federation.plan import Plan
from pacdp.federation.results import Result, RoundResult
from pacdp.federation.server import Server
from pacdp.privacy import Book, Release
from pacdp.privacy.filter import listed

# Called with each round when it is over.
Observer = Callable[[RoundResult], None]


def simulate(
    plan: Plan,
    dataset: Dataset,
    partition: Partition,
    *,
    initial: Tensors | None = None,
    books: Sequence[Book | None] | None = None,
    failure_rate: float = 0.0,
    evaluate_every: int = 1,
    observe: Observer | None = None,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    make: Callable[[], nn.Module] | None = None,
    engine: EngineName = "auto",
) -> Result:
    """Run the plan on the clients of a partition.

    ``books`` are the clients' ledgers; by default they are kept in memory. With durable ledgers
    noise comes from the operating system, so no two runs are the same. ``failure_rate`` is the
    probability that a client that is asked fails: half of those before they have paid, half after,
    when the release is paid for and lost. With a ``checkpoint`` the run goes on where it stood.
    ``make`` gives a model of one's own. ``engine`` says how a round is computed
    (:mod:`pacdp.federation.engines.base`): the numbers are the same to rounding, and
    ``one-by-one`` is for debugging.

    >>> from pacdp.data import load, partition
    >>> from pacdp.federation import Privacy, Training, make_plan
    >>> from pacdp.methods import method
    >>> data = load("heart")
    >>> hospitals = partition(data, "natural")
    >>> plan = make_plan(
    ...     sizes=hospitals.named_sizes, shape=data.shape, classes=2, method=method("fixed"),
    ...     training=Training(rounds=3, local_steps=1), privacy=Privacy(epsilon=1.0),
    ... )
    >>> result = simulate(plan, data, hospitals)
    >>> [round(client.epsilon_spent, 6) for client in result.clients()]
    [1.0, 1.0, 1.0, 1.0]
    """
    if not 0 <= failure_rate < 1:
        raise InputError(f"failure_rate = {failure_rate:g}: must be a number in [0, 1)")
    if checkpoint is not None and books is not None:
        raise InputError("checkpoint: what ledgers have paid for cannot be done again")
    started = time.perf_counter()
    records = partition.of(dataset)
    bench = Workbench(plan, device=device, make=make)
    first = bench.state() if initial is None else initial
    # No client has this number.
    server = Server(plan, first, noise=simulated_noise(plan.seed, -1))
    everyone = range(len(plan.clients))
    if books is not None and len(books) != len(everyone):
        raise InputError(f"books: are {len(books)}, must be {len(everyone)}, one a client")
    held = [checked_book(plan, one, None if books is None else books[one]) for one in everyone]
    durable = [book is not None and book.durable for book in held]
    test, _ = dataset.test.tensors(device)
    done = None if checkpoint is None else checkpoint.load()
    refused: Counter[int] = Counter({} if done is None else done.refused)
    failed: Counter[int] = Counter({} if done is None else done.failed)
    history = [] if done is None else [RoundResult.from_json(row) for row in done.history]
    computing = choose_engine(engine, bench, make=lambda: Workbench(plan, device=device, make=make))

    checked: set[int] = set()

    def client(number: int) -> Client:
        # Made for a round and let go: clients that nobody asks take no memory.
        made = Client(
            *(number, plan, records[number]),
            book=held[number],
            noise=None if durable[number] else simulated_noise(plan.seed, number),
            workbench=bench,
            checked=number in checked,
        )
        checked.add(number)
        return made

    if done is not None:
        if done.engine != computing.name:
            raise InputError(f"engine = {computing.name}: must be {done.engine}, as it was begun")
        server.restore(done.server)
        _replay(plan, held, done.made)
        started -= done.seconds
    predicted = np.empty(0)
    for number in range(len(history), plan.rounds):
        asked = plan.participants(number)
        fails = {one: _failure(plan.seed, number, one, failure_rate) for one in asked}
        there = [client(one) for one in asked if not fails[one][0]]
        followed = plan.made_method.followed(server.public)
        found = computing.round(there, server.broadcast(number))
        answered = [one for one in found.values() if isinstance(one, Reply)]
        replies = [reply for reply in answered if not fails[reply.client][1]]
        refused.update(who for who, one in found.items() if not isinstance(one, Reply))
        failed.update(who for who in asked if fails[who][0])
        failed.update(reply.client for reply in answered if fails[reply.client][1])
        server.combine(replies)
        failed.update(server.spoiled)
        server.finish_round(number)
        seconds, scores = time.perf_counter() - started, {}
        if (number + 1) % evaluate_every == 0 or number + 1 == plan.rounds:
            bench.load(server.model)
            predicted = metrics.predict(bench.model, test, classes=plan.classes)
            scores = metrics.quick(predicted, dataset.test.labels, classes=plan.classes)
        row = RoundResult(
            round=number + 1,
            asked=plan.per_round,
            answered=len(replies),
            epsilon_spent=_spent(held),
            adjacency=plan.privacy.adjacency,
            seconds=seconds,
            clipping_bound=followed,
            metrics=scores,
        )
        history.append(row)
        if checkpoint is not None:
            checkpoint.save(
                Progress(
                    round=number + 1,
                    server=server.state(),
                    engine=computing.name,
                    made=_made(plan, held),
                    refused=dict(refused),
                    failed=dict(failed),
                    history=[row.to_json() for row in history],
                    seconds=time.perf_counter() - started,
                )
            )
        if observe is not None:
            observe(row)
    if refused and not any(row.answered for row in history):
        raise BudgetExceededError(
            f"{plan.run}: no client answered in any of {plan.rounds} rounds, so nothing was "
            f"trained; {sum(refused.values())} requests were refused"
        )
    if not predicted.size:  # every round was over before
        bench.load(server.model)
        predicted = metrics.predict(bench.model, test, classes=plan.classes)
    return Result(
        plan=plan,
        model=server.model,
        history=history,
        metrics=metrics.full(predicted, dataset.test.labels, classes=plan.classes),
        chance=metrics.chance(dataset.test.labels, classes=plan.classes),
        accuracies=metrics.by_client(predicted, dataset, partition),
        books=held,
        seconds=time.perf_counter() - started,
        refused=refused,
        failed=failed,
    )


def _made(plan: Plan, books: Sequence[Book | None]) -> dict[int, list[dict[str, Any]]]:
    """The releases that each client has paid for."""
    return {
        number: [release.to_dict() for release in listed(book.made(plan.run))]
        for number, book in enumerate(books)
        if book is not None
    }


def _replay(
    plan: Plan, books: Sequence[Book | None], made: Mapping[int, list[dict[str, Any]]]
) -> None:
    """Bring new books to where they stood."""
    for number, releases in made.items():
        book = books[number]
        if book is None or not releases:
            continue
        for release in plan.participation(number):
            if release.sampled:
                whole = release.times(release.count * plan.clients[number].participations)
                book.freeze(whole, run=plan.run, label=plan.label)
        again = [Release(**values) for values in releases]
        book.reserve(*again, run=plan.run, label=plan.label)


def _spent(books: Sequence[Book | None]) -> float | None:
    """The most that any client has been charged so far."""
    states = [book.filter for book in books if book is not None]
    # A sampled plan is charged as a whole when it is frozen: at most its budget.
    whole = [state.budget.epsilon for state in states if state.frozen]
    single = [state for state in states if not state.frozen]
    # Under one δ the largest μ is the largest ε, and inverting one curve is enough.
    largest = sorted(single, key=lambda state: state.mu_charged)[-1:]
    return max([*whole, *(state.realised.epsilon for state in largest)], default=None)


def _failure(seed: int, round: int, client: int, rate: float) -> tuple[bool, bool]:  # noqa: A002
    """Whether a client fails before it has paid, and whether after."""
    if not rate:
        return False, False
    drawn = np.random.default_rng([seed, round, client, 1]).random()
    return drawn < rate / 2, rate / 2 <= drawn < rate
