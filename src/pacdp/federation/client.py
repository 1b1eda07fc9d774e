"""The client: it answers a round and trusts nobody.

A client is given the plan, its records and its ledger. From the server it takes only the round, a
model, and the method's state, which is derived from noised values. Noise and divisor come from the
client's own copy of the plan; the ledger is debited before anything is computed that could leave;
and only noised values are sent. A real federation wraps exactly this class. The method is part of
the client: its mistakes are refused here, but malicious intent cannot be.
"""

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from pacdp.clipping import NoiseSource, SimulatedNoise, SystemNoise
from pacdp.clipping.examples import ExampleLevels
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.numerics import check_noise
from pacdp.data import Records
from pacdp.errors import BudgetExceededError, InputError, add_location
from pacdp.federation.client_context import GuardedClientContext, NoiseOf
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Broadcast, Refusal, Reply
from pacdp.federation.plan import Plan
from pacdp.federation.uploads import coarsen_update, upload_step
from pacdp.methods import Answer
from pacdp.privacy import Ledger, MemoryLedger, Release


class Client:
    """One client of a federation.

    Without a ``ledger`` it keeps a new one in memory. ``noise`` returns the source of a round's
    noise and hidden coins; by default it is the operating system's entropy. A simulation passes
    :func:`simulated_noise`; whoever knows the seed can subtract that noise again, so it is refused
    with a durable ledger. ``checked`` skips the checks of records and model, for a client that was
    created before with the same ones.

    Formal guarantee: with the system's noise, all answers ever given under the ledger are together
    (ε, δ)-private for the ledger's budget, adjacency and unit, whatever the server sends.
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
        self.number, self.plan, self.records = number, plan, records
        self.client_plan = plan.clients[number]
        self.name = self.client_plan.name
        self.method = plan.algorithm
        self.local_model = local_model or LocalModel(plan)
        self.noise = noise or (lambda number: SystemNoise())
        self.ledger = require_ledger(plan, number, ledger)
        # One answer at a time: its model is trained in place.
        self._lock = threading.Lock()
        self.units = self._number_units()
        self.levels = self._number_levels()
        bounds = self.client_plan.charges[0].ratios if self.client_plan.charges else ()
        # None where no level is treated differently.
        self.example_levels = (
            ExampleLevels(bounds, self.levels) if self.levels is not None and bounds else None
        )
        self.noise_source(0)
        if len(records) != self.client_plan.records:
            raise InputError(
                f"client {self.name}: has {len(records)} records, but is planned with "
                f"{self.client_plan.records}"
            )
        # Checked now, because later it would fail after it was paid for.
        if not checked:
            self._check_records()

    def answer(self, broadcast: Broadcast, *, local_model: LocalModel | None = None) -> Reply:
        """Take part in a round: pay, train the broadcast model, and return what was noised.

        A client that has answered as often as planned, or whose ledger has too little left, refuses
        with :class:`~pacdp.errors.BudgetExceededError` and sends nothing. It trains in
        ``local_model``, by default its own.
        """
        local_model = local_model or self.local_model
        with self._lock:
            local_model.load(broadcast.model)
            # A copy, because the tensors that were sent may be those about to be trained.
            model = local_model.state()
            scale = self.accept(broadcast)
            context = GuardedClientContext(
                *(self.plan, self.number),
                Broadcast(broadcast.round, model, broadcast.shared_state),
                scale=scale,
                records=self.records.tensors(self.plan.task, local_model.device),
                units=self.units,
                levels=self.levels,
                example_levels=self.example_levels,
                local_model=local_model,
                noise=self.noise_source(broadcast.round),
            )
            answer = self._train(context, local_model)
            if not context.may_send(answer):
                raise BudgetExceededError(
                    f"client {self.name}: its method sends what was not released"
                )
        step = upload_step(
            *(self.plan, self.number, broadcast.round),
            scale=scale,
            shared_state=broadcast.shared_state,
            released=answer.released,
        )
        update = coarsen_update(answer.update, step)
        return Reply(self.number, broadcast.round, update, answer.released, scale)

    def answer_or_refuse(self, broadcast: Broadcast, local_model: LocalModel) -> Reply | Refusal:
        """Return the answer, or the refusal if the client's plan or budget is used up."""
        try:
            return self.answer(broadcast, local_model=local_model)
        except BudgetExceededError as error:
            return Refusal(self.number, str(error))

    def accept(self, broadcast: Broadcast) -> float:
        """Check a broadcast, and debit the whole participation before any of it is computed.

        Returns the scale of the noise relative to even spending, which follows from who took part
        when.
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
                check_noise(release.z / release.smallest_ratio, self.local_model.coordinates)
            freeze_sampled(self.plan, self.number, self.ledger, releases)
            self.ledger.reserve(
                *releases,
                run=self.plan.run,
                label=self.plan.label,
                at_most=self.plan.max_releases(self.number),
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(f"client {self.name}: {error}") from None
        return scale

    def noise_source(self, round: int) -> NoiseSource:  # noqa: A002
        """Return the noise source of a round; a durable ledger accepts only the system's."""
        source = self.noise(round)
        durable = self.ledger is not None and self.ledger.durable
        if durable and type(source) is not SystemNoise:
            raise InputError(
                f"client {self.name}: its ledger is durable, so its noise must be SystemNoise; "
                "whoever knows the seed can subtract seeded noise again"
            )
        return source

    def _check_records(self) -> None:
        """Refuse records that do not fit the plan's model, without showing a value.

        Whether the model can be trained privately is tested on synthetic records.
        """
        where, features = f"client {self.name}", self.records.features
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
        self.local_model.gradient.describe_strategy(
            *self.records.empty_tensors(self.plan.task, self.local_model.device)
        )

    def _number_units(self) -> Tensor | None:
        """Return the unit of each record as 0, 1, 2, ...; None if each record is a unit."""
        unit, planned = self.plan.unit, self.client_plan.units
        if unit == "record":
            return None
        if self.records.units is None:
            raise InputError(
                f"client {self.name}: its records have no units, but ε is for a {unit}"
            )
        numbers = np.unique(self.records.units, return_inverse=True)[1]
        count = int(numbers.max()) + 1 if len(numbers) else 0
        if count != planned:
            raise InputError(
                f"client {self.name}: has {count} units ({unit}), but is planned with {planned}"
            )
        return torch.from_numpy(numbers)

    def _number_levels(self) -> Tensor | None:
        """Return the budget level of each unit as 0, 1, 2, ...; None if none has its own budget."""
        declared, planned = self.plan.privacy.records, self.client_plan.levels
        where, units = f"client {self.name}", self.client_plan.units
        ignored = not planned or declared is None or declared.shares is not None
        if self.method.private and self.records.budgets is not None and ignored:
            raise InputError(f"{where}: its records have budgets, which the plan ignores")
        if declared is None or not planned:
            return None
        if declared.shares is not None:
            drawn = declared.draw(units, seed=self.plan.seed, client=self.number)
            return torch.from_numpy(drawn)
        budgets = self.records.unit_budgets()
        if budgets is None:
            raise InputError(f"{where}: its records have no budgets, but are planned with levels")
        # In the same time, whichever record has which level.
        held = budgets[:, None] == np.array(declared.levels)
        if not held.any(1).all():
            raise InputError(
                f"{where}: a record has a budget that is not among the levels of the plan"
            )
        index = held.argmax(1)
        if np.bincount(index, minlength=len(planned)).tolist() != [p.units for p in planned]:
            raise InputError(f"{where}: the numbers of records with each budget are not as planned")
        return torch.from_numpy(index)

    def _train(self, context: GuardedClientContext, local_model: LocalModel) -> Answer:
        """Run the method; errors name the client, the round and the step."""
        # Sequential models consist of layers without random numbers.
        sequential = local_model.gradient.sequential
        try:
            with nullcontext() if sequential else self._seed_dropout(context.round):
                # The whole method, because not every method clips each gradient.
                return run_flushed(lambda: self.method.train(context))
        except BudgetExceededError:
            raise
        except Exception as error:
            where = f"client {self.name}, round {context.round + 1}, step {context.steps + 1}"
            raise add_location(error, where) from error

    @contextmanager
    def _seed_dropout(self, round: int) -> Iterator[None]:  # noqa: A002
        """Seed torch by client and round, so that dropout is the same in every run."""
        with torch.random.fork_rng(devices=[]):
            key = f"{self.plan.seed} {self.number} {round}".encode()
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            yield


def require_ledger(plan: Plan, client: int, ledger: Ledger | None) -> Ledger | None:
    """Return the ledger if it fits the plan, or a new one in memory if there is none."""
    name, budget = plan.clients[client].name, plan.budget(client)
    if budget is None:
        if ledger is not None:
            raise InputError(
                f"client {name}: {plan.method} has no guarantee, and must have no ledger"
            )
        return None
    levels = plan.clients[client].declared_levels
    if ledger is None:
        return MemoryLedger(budget, levels=levels, level_budgets=plan.level_budgets(client))
    if ledger.filter.levels != levels:
        # By their declared ε: a record must be charged to the same level in every run.
        actual, planned = (
            ", ".join(f"{epsilon:g}" for epsilon in known) or "none"
            for known in (ledger.filter.levels, levels)
        )
        raise InputError(
            f"client {name}: its ledger has the budget levels {actual}, but the plan has {planned}"
        )
    records = plan.privacy.records
    if ledger.durable and levels and records is not None and records.shares is not None:
        raise InputError(
            f"client {name}: its ledger is durable, so its records must hold their budgets; shares "
            "assign levels anew for each seed and are for simulations only"
        )
    holder = getattr(ledger, "client", name)
    if holder != name:
        raise InputError(f"client {name}: its ledger is that of {holder}")
    for part in ("delta", "adjacency", "unit"):
        actual, planned = getattr(ledger.filter.budget, part), getattr(budget, part)
        if actual != planned:
            raise InputError(
                f"client {name}: its ledger has {part} {actual}, but the plan has {planned}"
            )
    return ledger


def freeze_sampled(plan: Plan, client: int, ledger: Ledger, releases: Sequence[Release]) -> None:
    """Charge all sampled releases of the training at once, before the first of them is made."""
    for release in releases:
        whole = release.times(release.count * plan.clients[client].participations)
        if not release.sampled or ledger.filter.frozen[release.times(1)] >= whole.count:
            continue
        if ledger.filter.spent:
            raise BudgetExceededError("its ledger is in use; a sampled plan needs a fresh one")
        ledger.freeze(whole, run=plan.run, label=plan.label)


def simulated_noise(seed: int, client: int) -> NoiseOf:
    """Return seeded noise for simulations: the same for the same client and round.

    >>> simulated_noise(seed=0, client=1)(2).integers(2, 100.0).shape
    torch.Size([2])
    """
    return lambda number: SimulatedNoise(seed=seed, client=client, round=number)
