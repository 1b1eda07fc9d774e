"""The client: a piece of its own that answers a round and trusts nobody.

It is given the plan, its records and its book, and from the server only the round, a model, and
what a method keeps there from noised values. The noise and the divisor come from the plan that it
holds itself; the book is debited before anything is computed that could leave; and what it sends is
noised values and nothing else. A real federation wraps exactly this. The method is a part of the
client: what it does by mistake is refused here, and what it does by intent cannot be.
"""

import hashlib
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from pacdp.clipping import NoiseSource, SimulatedNoise, SystemNoise
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.numerics import check_noise
from pacdp.data import Records
from pacdp.errors import BudgetExceededError, InputError, add_location
from pacdp.federation.client_context import GuardedClientContext, NoiseOf
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Broadcast, Reply
from pacdp.federation.plan import ClientPlan, Plan
from pacdp.methods import Answer
from pacdp.privacy import Ledger, MemoryLedger, Release


class Client:
    """One client of a federation.

    Without a ``ledger`` it keeps a new one in memory. ``noise`` gives the source of a round's noise
    and hidden coins: by default the operating system's entropy. A simulation passes
    :func:`simulated_noise`; whoever knows the seed can subtract that noise again, so it is refused
    with a durable ledger. ``checked`` says that a client with the same records and the same model
    was made before, so that they need not be checked again.

    Formal guarantee: with the system's noise, all answers it ever gives under its book are together
    (ε, δ)-private for the book's budget, adjacency and unit, whatever the server sends.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        records: Records,
        *,
        ledger: Ledger | None = None,
        noise: NoiseOf | None = None,
        local_model: LocalModel | None = None,
        checked: bool = False,
    ) -> None:
        self.number = number
        self.plan = plan
        self.client_plan = plan.clients[number]
        self.method = plan.algorithm
        self.local_model = local_model or LocalModel(plan)
        self.noise = noise or (lambda number: SystemNoise())
        self.ledger = require_ledger(plan, number, ledger)
        # One answer at a time: clients share the model.
        self._lock = threading.Lock()
        self.records = records
        self.units = _units(records, self.client_plan, plan.unit)
        self.noise_source(0)
        if len(records) != self.client_plan.records:
            raise InputError(
                f"client {self.client_plan.name}: has {len(records)} records, but is planned with "
                f"{self.client_plan.records}"
            )
        # Refused now, since later it would fail after it was paid for.
        if not checked:
            self._check_records()

    def answer(self, broadcast: Broadcast, *, local_model: LocalModel | None = None) -> Reply:
        """Take part in a round: pay, train on the broadcast model, and send what is noised.

        A client that has answered as often as planned, or whose book has too little left, refuses
        with :class:`~pacdp.errors.BudgetExceededError` and sends nothing. ``local_model`` is where
        it trains, if not on its own.
        """
        local_model = local_model or self.local_model
        with self._lock:
            local_model.load(broadcast.model)
            # A copy: what was sent may be the very tensors that are about to be trained.
            model = local_model.state()
            scale = self.accept(broadcast)
            context = GuardedClientContext(
                *(
                    self.plan,
                    self.number,
                    Broadcast(broadcast.round, model, broadcast.shared_state),
                ),
                scale=scale,
                records=self.records.tensors(self.plan.task, local_model.device),
                units=self.units,
                local_model=local_model,
                noise=self.noise_source(broadcast.round),
            )
            answer = self._trained(context, local_model)
            if not context.may_leave(answer):
                raise BudgetExceededError(
                    f"client {self.client_plan.name}: its method sends what was not released"
                )
        return Reply(self.number, broadcast.round, answer.update, answer.released, scale)

    def accept(self, broadcast: Broadcast) -> float:
        """Look at what was sent, and debit the whole participation before any of it is computed.

        Answers with the scale of its noise, where budgets move: a number that follows from who
        took part when.
        """
        number = broadcast.round
        if type(number) is not int or not 0 <= number < self.plan.rounds:
            raise InputError(
                f"round = {number!r}: must be a whole number from 0 to {self.plan.rounds - 1}"
            )
        self.method.check_state(broadcast.shared_state, self.number)
        self.noise_source(number)
        if self.ledger is None:
            return 1.0
        try:
            scale = self.plan.noise_scale(self.number, number, self.ledger)
            if math.isinf(scale):
                raise BudgetExceededError("has spent its whole budget")
            releases = self.plan.planned_releases(self.number, scale=scale)
            for release in releases:
                check_noise(release.z, self.local_model.coordinates)
            for release in releases:
                self._freeze(release)
            self.ledger.reserve(
                *releases,
                run=self.plan.run,
                label=self.plan.label,
                at_most=self.plan.max_releases(self.number),
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(f"client {self.client_plan.name}: {error}") from None
        return scale

    def _check_records(self) -> None:
        """Refuse records that the plan's model cannot take; no message shows a value.

        Whether the model can be trained privately is tested on synthetic records.
        """
        where, features = f"client {self.client_plan.name}", self.records.features
        if features.shape[1:] != self.plan.shape:
            raise InputError(
                f"{where}: its records have shape {features.shape[1:]}, but the plan's have "
                f"{self.plan.shape}"
            )
        self.plan.task.require_labels(where, self.records.labels)
        tables = [m for m in self.local_model.model.modules() if isinstance(m, nn.Embedding)]
        if len(tables) == 1 and features.dtype.kind in "iu":
            known = range(tables[0].num_embeddings)
            if not (int(features.min()) in known and int(features.max()) in known):
                raise InputError(
                    f"{where}: its records hold tokens that the model does not know; must be whole "
                    f"numbers from 0 to {known.stop - 1}"
                )
        self.local_model.gradient.check(
            *self.records.empty_tensors(self.plan.task, self.local_model.device)
        )

    def noise_source(self, round: int) -> NoiseSource:  # noqa: A002
        """Where the noise of a round comes from; a durable ledger accepts only the system's."""
        source = self.noise(round)
        durable = self.ledger is not None and self.ledger.durable
        if durable and type(source) is not SystemNoise:
            raise InputError(
                f"client {self.client_plan.name}: its ledger is durable, so its noise must be "
                "SystemNoise; whoever knows the seed can subtract seeded noise again"
            )
        return source

    def _trained(self, context: GuardedClientContext, local_model: LocalModel) -> Answer:
        """The method's answer; what goes wrong says where."""
        # Only what is not a chain can draw random numbers of its own.
        chance = (
            nullcontext() if local_model.gradient.sequential else self._own_dropout(context.round)
        )
        try:
            with chance:
                # All of it, since not every method clips each gradient.
                return run_flushed(lambda: self.method.train(context))
        except BudgetExceededError:
            raise
        except Exception as error:
            name, number = self.client_plan.name, context.round + 1
            where = f"client {name}, round {number}, step {context.steps + 1}"
            raise add_location(error, where) from error

    def _freeze(self, release: Release) -> None:
        """ReleaseSpec all sampled releases of the training at once, before the first is made."""
        assert self.ledger is not None
        whole = release.times(release.count * self.client_plan.participations)
        state = self.ledger.filter
        if not release.sampled or state.frozen[release.times(1)] >= whole.count:
            return
        if state.spent:
            raise BudgetExceededError("its ledger is in use; a sampled plan needs a fresh one")
        self.ledger.freeze(whole, run=self.plan.run, label=self.plan.label)

    @contextmanager
    def _own_dropout(self, round: int) -> Iterator[None]:  # noqa: A002
        """Dropout of its own for each client and round, the same in every run."""
        with torch.random.fork_rng(devices=[]):
            key = f"{self.plan.seed} {self.number} {round}".encode()
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            yield


def require_ledger(plan: Plan, client: int, ledger: Ledger | None) -> Ledger | None:
    """The book, if it promises the same as the plan; a new one in memory if there is none."""
    name, budget = plan.clients[client].name, plan.budget(client)
    if budget is None:
        if ledger is not None:
            raise InputError(
                f"client {name}: {plan.method} has no guarantee, and must have no ledger"
            )
        return None
    if ledger is None:
        return MemoryLedger(budget)
    holder = getattr(ledger, "client", name)
    if holder != name:
        raise InputError(f"client {name}: its ledger is that of {holder}")
    mine = ledger.filter.budget
    for part in ("delta", "adjacency", "unit"):
        if getattr(mine, part) != getattr(budget, part):
            raise InputError(
                f"client {name}: its ledger has {part} {getattr(mine, part)}, but the plan has "
                f"{getattr(budget, part)}"
            )
    return ledger


def simulated_noise(seed: int, client: int) -> NoiseOf:
    """Noise from a seed, for simulations: the same for the same client and round.

    >>> simulated_noise(seed=0, client=1)(2).integers(2, 100.0).shape
    torch.Size([2])
    """
    return lambda number: SimulatedNoise(seed=seed, client=client, round=number)


def _units(records: Records, client_plan: ClientPlan, unit: str) -> Tensor | None:
    """The unit of each record as 0, 1, 2, ..., or None where each record is its own."""
    if unit == "record":
        return None
    if records.units is None:
        raise InputError(
            f"client {client_plan.name}: its records have no units, but ε is for a {unit}"
        )
    numbers = np.unique(records.units, return_inverse=True)[1]
    found = int(numbers.max()) + 1 if len(numbers) else 0
    if found != client_plan.units:
        raise InputError(
            f"client {client_plan.name}: has {found} units ({unit}), but is planned with "
            f"{client_plan.units}"
        )
    return torch.from_numpy(numbers)
