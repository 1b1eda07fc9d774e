"""The client: a piece of its own that answers a round and trusts nobody.

It is given the plan, its records and its book, and from the server only the round, a model, and
what a method keeps there from noised values. The noise and the divisor come from the plan that it
holds itself; the book is debited before anything is computed that could leave; and what it sends is
noised values and nothing else. A real federation wraps exactly this. The method is a part of the
client: what it does by mistake is refused here, and what it does by intent cannot be.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pacdp.clipping import (
    Bounded,
    NoiseSource,
    SimulatedNoise,
    SystemNoise,
    centred_count,
    clip_upload,
    release,
)
from pacdp.data import Records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation.plan import ClientPlan, Plan
from pacdp.federation.workbench import Tensors, Workbench
from pacdp.methods import Answer, Public
from pacdp.privacy import Book, MemoryBook, Release

# The noise of a round and a step.
NoiseOf = Callable[[int, int], NoiseSource]
# Where a round's and a step's sample of records comes from.
SamplerOf = Callable[[int, int], np.random.Generator]


@dataclass(frozen=True)
class Broadcast:
    """What the server sends: the round, the model, and what the method keeps."""

    round: int
    model: Tensors
    public: Public = field(default_factory=dict)
    """What the method keeps on the server; nothing a client must believe."""


@dataclass(frozen=True)
class Reply:
    """What a client sends: how its noised local training moved the model."""

    client: int
    round: int
    update: Tensors
    released: Sequence[Tensors] = ()
    """What else was released, if the method needs it."""


class Client:
    """One client of a federation.

    ``book`` is its ledger; without one it keeps a new book in memory. ``noise`` gives the source
    for a round and a step, and ``sampler`` that of sampled records: by default the operating
    system's entropy. A simulation passes :func:`simulated_noise` and :func:`simulated_sampler`;
    whoever knows the seed can take that noise off again.

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
        sampler: SamplerOf | None = None,
        workbench: Workbench | None = None,
    ) -> None:
        self.number = number
        self.plan = plan
        self.task = plan.clients[number]
        self.method = plan.made_method
        self.workbench = workbench or Workbench(plan)
        self.noise = noise or (lambda number, step: SystemNoise())
        self.sampler = sampler or (lambda number, step: np.random.default_rng())
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
            self.method.check(broadcast.public, self.number)
            self._pay()
            work = _Participation(self, Broadcast(broadcast.round, model, broadcast.public))
            with self._own_dropout(broadcast.round):
                answer = self.method.train(work)
            if not work.may_leave(answer):
                raise BudgetExceededError(
                    f"client {self.task.name}: its method sends what was not released"
                )
        return Reply(self.number, broadcast.round, answer.update, answer.released)

    def _pay(self) -> None:
        """Debit the whole participation, before any of it is computed."""
        if self.book is None:
            return
        releases = self.plan.participation(self.number)
        try:
            for release in releases:
                self._freeze(release)
            self.book.reserve(
                *releases, run=self.plan.run, label=self.plan.label, at_most=self.task.releases
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(f"client {self.task.name}: {error}") from None

    def _freeze(self, release: Release) -> None:
        """Charge all sampled releases of the training at once, before the first is made."""
        assert self.book is not None
        whole = release.times(release.count * self.task.participations)
        state = self.book.filter
        if not release.sampled or state.frozen[release.times(1)] >= whole.count:
            return
        if state.spent:
            raise BudgetExceededError("its ledger is in use; a sampled plan needs a fresh one")
        self.book.freeze(whole, run=self.plan.run, label=self.plan.label)

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
        self._planned = client.plan.participation(client.number)
        self._optimiser: torch.optim.Optimizer | None = None
        self._everything = torch.arange(len(client.inputs))
        # Kept by identity, with the objects themselves so that no other can take their place:
        # what was summed over which records, drawn at which rate, and what may leave.
        self._sums: list[tuple[Bounded, Tensor, float]] = []
        self._samples: list[tuple[Tensor, float]] = []
        self._may_leave: list[Tensors] = []
        self._touched = np.zeros((len(self._planned), client.task.units), np.int64)
        self._draws = 0
        # Whether the local model is made of nothing but released values.
        self._clean = True

    @property
    def client(self) -> int:
        return self._client.number

    @property
    def public(self) -> Public:
        return self._broadcast.public

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
        task = self.task
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
                yield self._of_units(torch.from_numpy(np.sort(part)))
            step += len(parts)

    def sample(self, rate: float) -> Tensor:
        random = self._client.sampler(self.round, self._draws)
        self._draws += 1
        chosen = torch.from_numpy(np.flatnonzero(random.random(self.task.units) < rate))
        batch = self._of_units(chosen)
        self._samples.append((batch, rate))
        return batch

    def _of_units(self, chosen: Tensor) -> Tensor:
        """The records of some units."""
        units = self._client.units
        return chosen if units is None else torch.nonzero(torch.isin(units, chosen)).flatten()

    def _checked(self, batch: Tensor) -> Tensor:
        """A copy of a batch that may be summed: records once each, on a model that is clean."""
        if not self._clean:
            raise BudgetExceededError(
                f"client {self.task.name}: the model was trained without noise, and every gradient "
                "depends on every record; only a clipped update may be released"
            )
        # From the end counted, a record would have a second number.
        distinct = len((batch % len(self._everything)).unique()) == len(batch)
        if batch is not self._everything and not distinct:
            raise BudgetExceededError(f"client {self.task.name}: a record is twice in a batch")
        return batch if batch is self._everything else batch.clone()

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        drawn = next((rate for known, rate in self._samples if known is batch), 1.0)
        self._samples = [(known, rate) for known, rate in self._samples if known is not batch]
        batch = self._checked(batch)
        inputs, targets = self._records(batch)
        total = self._bench.gradient(
            inputs, targets, clipping_bound=bound, units=self._units(batch)
        )
        self._sums.append((total, batch, drawn))
        return total

    def norms(self, batch: Tensor) -> Tensor:
        if self._client.plan.made_method.private:
            raise BudgetExceededError(f"client {self.task.name}: lengths are not paid for")
        return self._norms(batch)

    def _norms(self, batch: Tensor) -> Tensor:
        inputs, targets = self._records(batch)
        return self._bench.gradient.norms(inputs, targets, units=self._units(batch))

    def count_within(self, batch: Tensor, bound: float) -> Bounded:
        batch = self._checked(batch)
        count = centred_count(
            self._norms(batch) <= bound,
            adjacency=self._client.plan.adjacency,
            unit=self._client.plan.unit,
        )
        self._sums.append((count, batch, 1.0))
        return count

    def clipped_update(self, bound: float) -> Bounded:
        return self._clipped(self._difference(self._bench.state()), bound)

    def clipped_model(self, bound: float) -> Bounded:
        return self._clipped(self._bench.state(), bound)

    def _clipped(self, values: Tensors, bound: float) -> Bounded:
        plan = self._client.plan
        made = clip_upload(values, bound=bound, adjacency=plan.adjacency, unit=plan.unit)
        self._sums.append((made, self._everything, 1.0))
        return made

    def plain_mean(self, batch: Tensor) -> Tensors:
        inputs, targets = self._records(batch)
        with torch.enable_grad():
            loss = self._bench.loss(self._bench.model(inputs), targets).mean()
            found = torch.autograd.grad(loss, list(self._bench.parameters.values()))
        return dict(zip(self._bench.parameters, found, strict=True))

    def _units(self, batch: Tensor) -> Tensor | None:
        units = self._client.units
        return None if units is None else units[batch]

    def _records(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._client.inputs, self._client.targets
        return (inputs, targets) if batch is self._everything else (inputs[batch], targets[batch])

    def release(self, value: Bounded, *, charge: int = 0, divisor: float | None = None) -> Tensors:
        name = self.task.name
        if charge >= len(self._planned):
            raise BudgetExceededError(f"client {name}: has no budget to release from")
        planned = self._planned[charge]
        event = value.event(planned.z)
        paid = (event.adjacency, event.unit, event.sensitivity) == (
            *(planned.adjacency, planned.unit, planned.sensitivity),
        )
        records, drawn = next(
            ((batch, rate) for known, batch, rate in self._sums if known is value), (None, 0.0)
        )
        paid = paid and drawn == planned.sampling_rate
        if paid and records is not None:
            self._touched[charge, self._who(records, planned)] += 1
        if not paid or records is None or self._touched[charge].max() > planned.count:
            raise BudgetExceededError(
                f"client {name}: this release was not paid for; paid are {planned.count} of each "
                f"{planned.unit}"
            )
        self._sums = [entry for entry in self._sums if entry[0] is not value]
        noise = self._client.noise(self.round, self._draws)
        self._draws += 1
        public = self.task.divisor if divisor is None else divisor
        if public not in (self.task.divisor, 1.0):
            raise BudgetExceededError(f"client {name}: the divisor must be the plan's, or 1")
        made = release(value, z=planned.z, divisor=public, noise=noise)
        self._may_leave.append(made)
        return made

    def _who(self, records: Tensor, planned: Release) -> NDArray[np.int64] | slice:
        """The units that a release was of. Of a sampled one everybody might have been."""
        if planned.sampled:
            return slice(None)
        units = self._client.units
        return (records if units is None else units[records].unique()).numpy()

    def step(self, gradient: Tensors) -> None:
        known = any(made is gradient for made in self._may_leave)
        self._clean = self._clean and (known or not self._client.plan.made_method.private)
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
        made = self._difference(self._bench.state())
        if self._clean:
            self._may_leave.append(made)
        return made

    def update_to(self, model: Tensors) -> Tensors:
        made = self._difference(model)
        if any(known is model for known in self._may_leave):
            self._may_leave.append(made)
        return made

    def _difference(self, model: Tensors) -> Tensors:
        before = self._broadcast.model
        return {name: value - before[name].to(value) for name, value in model.items()}

    def may_leave(self, answer: Answer) -> bool:
        """Whether all of an answer is made of nothing but what was released."""
        sent = [answer.update, *answer.released]
        return all(any(known is one for known in self._may_leave) for one in sent)


def simulated_noise(seed: int, client: int) -> NoiseOf:
    """Noise from a seed, for simulations: the same for the same client, round and step.

    >>> simulated_noise(seed=0, client=1)(2, 3).normal(torch.zeros(2), 1.0).shape
    torch.Size([2])
    """
    return lambda number, step: SimulatedNoise(seed=seed, client=client, round=number, step=step)


def simulated_sampler(seed: int, client: int) -> SamplerOf:
    """Samples from a seed, for simulations.

    >>> simulated_sampler(seed=0, client=1)(2, 3).random() < 1
    True
    """
    return lambda number, step: np.random.default_rng([seed, client, number, step, 2])


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
