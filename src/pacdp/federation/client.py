"""The client: a piece of its own that answers a round and trusts nobody.

It is given the plan, its records and its book, and from the server only the round and a model. The
noise, the clipping bound and the divisor come from the plan that it holds itself; the book is
debited before anything is computed that could leave; and what it sends is noised values and nothing
else: no loss, no norm, no count. A real federation wraps exactly this.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping import Bounded, NoiseSource, SimulatedNoise, release
from pacdp.data import Records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation.plan import ClientPlan, Plan
from pacdp.federation.workbench import Tensors, Workbench
from pacdp.privacy import Book, MemoryBook

# The noise of a round and a step.
NoiseOf = Callable[[int, int], NoiseSource]


@dataclass(frozen=True)
class Broadcast:
    """What the server sends: the round, and the model."""

    round: int
    model: Tensors


@dataclass(frozen=True)
class Reply:
    """What a client sends: how its noised local training moved the model."""

    client: int
    round: int
    update: Tensors


class Client:
    """One client of a federation.

    ``book`` is its ledger; without one it keeps a new book in memory, as simulations do. ``noise``
    gives the source for a round and a step: by default it is seeded, for simulation. In a
    federation it must come from the operating system (:class:`~pacdp.clipping.SystemNoise`).

    Formal guarantee: over all answers it ever gives under its book, its uploads are (ε, δ)-private
    for the book's budget, adjacency and unit, whatever the server sends.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        records: Records,
        *,
        book: Book | None = None,
        noise: NoiseOf | None = None,
        workbench: Workbench | None = None,
    ) -> None:
        self.number = number
        self.plan = plan
        self.task = plan.clients[number]
        self.method = plan.made_method
        self.workbench = workbench or Workbench(plan)
        self.noise = noise or _simulated(plan.seed, number)
        self.book = self._checked(book)
        self.inputs, self.targets = records.tensors(self.workbench.device)
        self.units = _units(records, self.task, plan.unit)
        if len(records) != self.task.records:
            raise InputError(
                f"client {self.task.name}: has {len(records)} records, but is planned with "
                f"{self.task.records}"
            )

    def answer(self, broadcast: Broadcast) -> Reply:
        """Take part in a round: pay, train on the broadcast model, and send what is noised.

        A client that has answered as often as planned, or whose book has too little left, refuses
        with :class:`~pacdp.errors.BudgetExceededError` and sends nothing.
        """
        if not 0 <= broadcast.round < self.plan.rounds:
            raise InputError(f"round = {broadcast.round}: must be from 0 to {self.plan.rounds - 1}")
        self.workbench.load(broadcast.model)
        self._pay()
        with self._own_dropout(broadcast.round):
            update = self.method.train(_Participation(self, broadcast))
        return Reply(self.number, broadcast.round, update)

    def _pay(self) -> None:
        """Debit the whole participation, before any of it is computed."""
        planned = self.plan.release(self.number)
        if planned is None or self.book is None:
            return
        made = self.book.released(self.plan.run)
        if made + self.task.passes > self.task.releases:
            raise BudgetExceededError(
                f"client {self.task.name}: has answered as often as planned, "
                f"{self.task.participations} times"
            )
        self.book.reserve(planned.times(self.task.passes), run=self.plan.run, label=self.plan.label)

    def _checked(self, book: Book | None) -> Book | None:
        """The book, if it promises the same as the plan; a new one in memory if there is none."""
        budget = self.plan.budget(self.number)
        if budget is None:
            return None
        if book is None:
            return MemoryBook(budget)
        mine = book.filter.budget
        for name in ("delta", "adjacency", "unit"):
            if getattr(mine, name) != getattr(budget, name):
                raise InputError(
                    f"client {self.task.name}: its ledger has {name} {getattr(mine, name)}, but "
                    f"the plan has {getattr(budget, name)}"
                )
        return book

    @contextmanager
    def _own_dropout(self, round: int) -> Iterator[None]:  # noqa: A002
        """Dropout of its own for each client and round, the same in every run."""
        if not self.workbench.draws:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            key = f"{self.plan.seed} {self.number} {round}".encode()
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            yield


class _Participation:
    """One participation as the method sees it. See :class:`~pacdp.methods.Work`."""

    def __init__(self, client: Client, broadcast: Broadcast) -> None:
        self._client = client
        self._broadcast = broadcast
        self._bench = client.workbench
        self._planned = client.plan.release(client.number)
        self._steps_released = 0
        self._optimiser: torch.optim.Optimizer | None = None
        self._everything = torch.arange(len(client.inputs))

    @property
    def round(self) -> int:
        return self._broadcast.round

    @property
    def rounds(self) -> int:
        return self._client.plan.rounds

    @property
    def task(self) -> ClientPlan:
        return self._client.task

    def batches(self) -> Iterator[Tensor]:
        task, units = self.task, self._client.units
        if task.batches == 1:
            for _ in range(task.steps):
                yield self._everything
            return
        step = 0
        for number in range(task.passes):
            # The split depends on public numbers alone: each unit is in one batch of each pass.
            random = np.random.default_rng(
                [self._client.plan.seed, self._client.number, self.round, number]
            )
            parts = np.array_split(random.permutation(task.units), task.batches)
            for part in parts[: task.steps - step]:
                chosen = torch.from_numpy(np.sort(part))
                yield (
                    chosen if units is None else torch.nonzero(torch.isin(units, chosen)).flatten()
                )
            step += len(parts)

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        inputs, targets = self._records(batch)
        units = self._client.units
        return self._bench.gradient(
            inputs,
            targets,
            clipping_bound=bound,
            units=None if units is None else units[batch].to(inputs.device),
        )

    def plain_mean(self, batch: Tensor) -> Tensors:
        inputs, targets = self._records(batch)
        with torch.enable_grad():
            loss = self._bench.loss(self._bench.model(inputs), targets).mean()
            found = torch.autograd.grad(loss, list(self._bench.parameters.values()))
        return dict(zip(self._bench.parameters, found, strict=True))

    def _records(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._client.inputs, self._client.targets
        return (inputs, targets) if batch is self._everything else (inputs[batch], targets[batch])

    def release(self, value: Bounded) -> Tensors:
        planned = self._planned
        if planned is None:
            raise BudgetExceededError(f"client {self.task.name}: has no budget to release from")
        event = value.event(planned.z)
        paid = (event.adjacency, event.unit, event.sensitivity) == (
            *(planned.adjacency, planned.unit, planned.sensitivity),
        )
        if not paid or self._steps_released >= self.task.steps:
            raise BudgetExceededError(
                f"client {self.task.name}: this release was not paid for; paid are "
                f"{self.task.steps} steps of {planned}"
            )
        noise = self._client.noise(self.round, self._steps_released)
        self._steps_released += 1
        return release(value, z=planned.z, divisor=self.task.divisor, noise=noise)

    def step(self, gradient: Tensors) -> None:
        settings = self._client.plan.training.optimiser
        parameters = self._bench.parameters
        if settings.name == "sgd":
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.sub_(gradient[name], alpha=settings.lr)
            return
        if self._optimiser is None:
            values = list(parameters.values())
            self._optimiser = (
                torch.optim.SGD(values, lr=settings.lr, momentum=settings.momentum)
                if settings.name == "momentum"
                else torch.optim.Adam(values, lr=settings.lr)
            )
        for name, parameter in parameters.items():
            parameter.grad = gradient[name]
        self._optimiser.step()
        self._optimiser.zero_grad()

    def update(self) -> Tensors:
        before = self._broadcast.model
        return {
            name: parameter.detach() - before[name].to(parameter)
            for name, parameter in self._bench.parameters.items()
        }


def _simulated(seed: int, client: int) -> NoiseOf:
    return lambda number, step: SimulatedNoise(seed=seed, client=client, round=number, step=step)


def _units(records: Records, task: ClientPlan, unit: str) -> Tensor | None:
    """The unit of each record as 0, 1, 2, ..., or None where each record is its own."""
    if unit == "record":
        return None
    if records.units is None:
        raise InputError(f"client {task.name}: its records have no units, but ε is for a {unit}")
    numbers = np.unique(records.units, return_inverse=True)[1]
    found = int(numbers.max()) + 1 if len(numbers) else 0
    if found != task.units:
        raise InputError(
            f"client {task.name}: has {found} units ({unit}), but is planned with {task.units}"
        )
    return torch.from_numpy(numbers)
