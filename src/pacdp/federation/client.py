"""The client: a piece of its own that answers a round and trusts nobody.

It is given the plan, its records and its book, and from the server only the round and a model. The
noise, the clipping bound and the divisor come from the plan that it holds itself; the book is
debited before anything is computed that could leave; and what it sends is noised values and nothing
else: no loss, no norm, no count. A real federation wraps exactly this.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping import Bounded, NoiseSource, SimulatedNoise, SystemNoise, release
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

    ``book`` is its ledger; without one it keeps a new book in memory. ``noise`` gives the source
    for a round and a step: by default the operating system's entropy. A simulation passes
    :func:`simulated_noise`, which whoever knows the seed can take off again.

    Formal guarantee: with the system's noise, all answers it ever gives under its book are together
    (ε, δ)-private for the book's budget, adjacency and unit, whatever the server sends.
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
        self.noise = noise or (lambda number, step: SystemNoise())
        self.book = self._checked(book)
        # One answer at a time: the model on the workbench is one.
        self._lock = threading.Lock()
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
        if type(broadcast.round) is not int or not 0 <= broadcast.round < self.plan.rounds:
            raise InputError(
                f"round = {broadcast.round!r}: must be a whole number from 0 to "
                f"{self.plan.rounds - 1}"
            )
        with self._lock:
            # A copy: what was sent may be the very tensors that are about to be trained.
            model = {name: value.detach().clone() for name, value in broadcast.model.items()}
            self.workbench.load(model)
            self._pay()
            work = _Participation(self, Broadcast(broadcast.round, model))
            with self._own_dropout(broadcast.round):
                update = self.method.train(work)
            if not work.may_leave(update):
                raise BudgetExceededError(
                    f"client {self.task.name}: its method sends what was not released"
                )
        return Reply(self.number, broadcast.round, update)

    def _pay(self) -> None:
        """Debit the whole participation, before any of it is computed."""
        planned = self.plan.release(self.number)
        if planned is None or self.book is None:
            return
        try:
            self.book.reserve(
                planned.times(self.task.passes),
                run=self.plan.run,
                label=self.plan.label,
                at_most=self.task.releases,
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(f"client {self.task.name}: {error}") from None

    def _checked(self, book: Book | None) -> Book | None:
        """The book, if it promises the same as the plan; a new one in memory if there is none."""
        budget = self.plan.budget(self.number)
        if budget is None:
            if book is not None:
                raise InputError(
                    f"client {self.task.name}: {self.plan.method} has no guarantee, and must have "
                    "no ledger"
                )
            return None
        if book is None:
            return MemoryBook(budget)
        holder = getattr(book, "client", self.task.name)
        if holder != self.task.name:
            raise InputError(f"client {self.task.name}: its ledger is that of {holder}")
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
        self._optimiser: torch.optim.Optimizer | None = None
        self._everything = torch.arange(len(client.inputs))
        # What was summed over which records, what of it was released, and how often each unit
        # was in it. Kept by identity, with the objects themselves so that no other takes theirs.
        self._sums: list[tuple[Bounded, Tensor]] = []
        self._released: list[Tensors] = []
        self._touched = np.zeros(client.task.units, np.int64)
        self._steps_released = 0
        self._clean = True
        self._updates: list[Tensors] = []

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
        total = self._bench.gradient(
            inputs,
            targets,
            clipping_bound=bound,
            units=None if units is None else units[batch].to(inputs.device),
        )
        self._sums.append((total, batch))
        return total

    def plain_mean(self, batch: Tensor) -> Tensors:
        if self._planned is not None:
            raise BudgetExceededError(f"client {self.task.name}: a plain gradient is not paid for")
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
        records = next((batch for known, batch in self._sums if known is value), None)
        if paid and records is not None:
            units = self._client.units
            self._touched[(records if units is None else units[records].unique()).numpy()] += 1
        if not paid or records is None or self._touched.max() > self.task.passes:
            raise BudgetExceededError(
                f"client {self.task.name}: this release was not paid for; paid are "
                f"{self.task.passes} of each {planned.unit}"
            )
        self._sums = [(known, batch) for known, batch in self._sums if known is not value]
        noise = self._client.noise(self.round, self._steps_released)
        self._steps_released += 1
        made = release(value, z=planned.z, divisor=self.task.divisor, noise=noise)
        self._released.append(made)
        return made

    def step(self, gradient: Tensors) -> None:
        known = [made for made in self._released if made is gradient]
        self._released = [made for made in self._released if made is not gradient]
        self._clean = self._clean and bool(known or self._planned is None)
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
        made = {
            name: parameter.detach() - before[name].to(parameter)
            for name, parameter in self._bench.parameters.items()
        }
        self._updates.append(made)
        return made

    def may_leave(self, update: Tensors) -> bool:
        """Whether this is an update, made of nothing but what was released."""
        return self._clean and any(made is update for made in self._updates)


def simulated_noise(seed: int, client: int) -> NoiseOf:
    """Noise from a seed, for simulations: the same for the same client, round and step.

    >>> simulated_noise(seed=0, client=1)(2, 3).normal(torch.zeros(2), 1.0).shape
    torch.Size([2])
    """
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
