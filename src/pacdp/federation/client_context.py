"""One participation of one client: what a method may compute, and what of it may be sent.

Every release is compared with what was paid for, whatever the method intended: a release that was
not paid for, a record that occurs twice in a batch and a model that was trained without noise are
refused here.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pacdp.clipping import Bounded, NoiseSource, centred_count, clip_upload, release
from pacdp.clipping.examples import ExampleLevels
from pacdp.errors import BudgetExceededError
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.federation.messages import Broadcast
from pacdp.federation.optimizers import ParameterOptimizer
from pacdp.federation.plan import Plan
from pacdp.federation.release_guard import ALL_UNITS, ReleaseGuard, Units
from pacdp.methods import Answer
from pacdp.privacy import LevelTerms

# Returns the source of a round's noise and hidden coins.
NoiseOf = Callable[[int], NoiseSource]
# The rate at which all units are sampled, or one for each budget level.
Rates = float | Sequence[float]


def local_batches(plan: Plan, client: int, round: int) -> Iterator[NDArray[np.int64] | None]:  # noqa: A002
    """Yield the units of each local step; None stands for all of them.

    Batches depend on public numbers only: each unit is in one batch of each pass.
    """
    client_plan = plan.clients[client]
    if client_plan.batches == 1:
        for _ in range(client_plan.steps):
            yield None
        return
    # As np.array_split: the first batches have one more unit if the division leaves a remainder.
    size, longer = divmod(client_plan.units, client_plan.batches)
    border = longer * (size + 1)
    for number in range(client_plan.passes):
        random = np.random.default_rng([plan.seed, client, round, number])
        order = random.permutation(client_plan.units)
        batches = [
            *np.sort(order[:border].reshape(longer, size + 1), axis=1),
            *np.sort(order[border:].reshape(-1, size), axis=1),
        ]
        yield from batches[: client_plan.steps - number * client_plan.batches]


class GuardedClientContext:
    """The :class:`~pacdp.methods.ClientContext` of a client, behind a guard."""

    def __init__(
        self,
        plan: Plan,
        client: int,
        broadcast: Broadcast,
        *,
        scale: float,
        records: tuple[Tensor, Tensor],
        units: Tensor | None,
        levels: Tensor | None,
        example_levels: ExampleLevels | None,
        local_model: LocalModel,
        noise: NoiseSource,
    ) -> None:
        self.client_id, self.client_plan = client, plan.clients[client]
        self.round, self.rounds = broadcast.round, plan.rounds
        self.shared_state = broadcast.shared_state
        self.steps = 0
        self._plan = plan
        self._broadcast_model = broadcast.model
        self._inputs, self._targets = records
        self._unit_of = units
        self._level_of = levels
        self._levels = example_levels
        self._local_model = local_model
        self._noise = noise
        self._guard = ReleaseGuard(plan, client, scale=scale)
        self._optimizer: ParameterOptimizer | None = None
        self._all_records = torch.arange(len(self._inputs))
        # What was computed from which records, sampled at which rate, and what may be sent. Both
        # compare by identity, and keep the objects so that no other can take their place.
        self._sums: list[tuple[Bounded, Tensor, Rates]] = []
        self._released: list[Tensors] = []
        # Whether the local model depends on the records through released values only.
        self._noised = True

    def batches(self) -> Iterator[Tensor]:
        for chosen in local_batches(self._plan, self.client_id, self.round):
            if chosen is None:
                yield self._all_records
            elif self._unit_of is None:
                yield torch.from_numpy(chosen)
            else:
                yield torch.nonzero(torch.isin(self._unit_of, torch.from_numpy(chosen))).flatten()

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        return self._clip_and_sum(batch, bound)

    def sampled_sum(self, rate: Rates, bound: float) -> Bounded:
        # Every record is computed, and the coins are factors of 0 or 1, so that neither the time
        # taken nor the rounding of other records reveals which were sampled.
        rate = rate if isinstance(rate, float) else tuple(rate)
        return self._clip_and_sum(self._all_records, bound, rate=rate, present=self._sample(rate))

    def _sample(self, rate: Rates) -> Tensor:
        """Draw hidden coins for all units; with a rate for each level, by the unit's level."""
        if isinstance(rate, float):
            return self._noise.coins(self.client_plan.units, rate)
        if self._level_of is None or len(rate) != len(self.client_plan.levels):
            raise self._refuse("sampling rates must be one for each budget level")
        # Coins of every rate for every unit, in the same time whichever unit has which level.
        coins = torch.stack([self._noise.coins(self.client_plan.units, own) for own in rate])
        return coins.gather(0, self._level_of[None])[0]

    def _clip_and_sum(
        self, batch: Tensor, bound: float, *, rate: Rates = 1.0, present: Tensor | None = None
    ) -> Bounded:
        batch = self._check_batch(batch)
        inputs, targets, units = self._select(batch)
        total = self._local_model.gradient(
            inputs,
            targets,
            clipping_bound=bound,
            units=units,
            present=present,
            levels=self._levels_in(batch),
        )
        return self._remember(total, batch, rate)

    def _levels_in(self, batch: Tensor) -> ExampleLevels | None:
        """Return the budget levels of a batch's units; None where all records are alike."""
        if self._levels is None or batch is self._all_records:
            return self._levels
        return self._levels.take(batch if self._unit_of is None else self._unit_of[batch].unique())

    def count_within(self, batch: Tensor, bound: float) -> Bounded:
        batch = self._check_batch(batch)
        within = self._norms(batch) <= bound
        count = centred_count(within, adjacency=self._plan.adjacency, unit=self._plan.unit)
        return self._remember(count, batch)

    def clipped_update(self, bound: float) -> Bounded:
        return self._clip_whole(self._difference(self._local_model.state()), bound)

    def clipped_model(self, bound: float) -> Bounded:
        return self._clip_whole(self._local_model.state(), bound)

    def _clip_whole(self, values: Tensors, bound: float) -> Bounded:
        plan = self._plan
        clipped = clip_upload(values, bound=bound, adjacency=plan.adjacency, unit=plan.unit)
        return self._remember(clipped, self._all_records)

    def norms(self, batch: Tensor) -> Tensor:
        if self._plan.algorithm.private:
            raise self._refuse("gradient norms are not paid for")
        return self._norms(batch)

    def _norms(self, batch: Tensor) -> Tensor:
        inputs, targets, units = self._select(batch)
        return self._local_model.gradient.norms(inputs, targets, units=units)

    def plain_mean(self, batch: Tensor) -> Tensors:
        inputs, targets, _ = self._select(batch)
        model = self._local_model
        with torch.enable_grad():
            loss = model.loss(model.model(inputs), targets).mean()
            gradients = torch.autograd.grad(loss, list(model.parameters.values()))
        return dict(zip(model.parameters, gradients, strict=True))

    def release(self, value: Bounded, *, index: int = 0, divisor: float | None = None) -> Tensors:
        z = self._guard.paid(index).z
        # A value that was not computed here is refused: nothing is paid for at rate 0.
        _, batch, rate = next(
            (known for known in self._sums if known[0] is value), (value, None, 0.0)
        )
        event = value.event(z)
        divisor = self.client_plan.divisor if divisor is None else divisor
        self._guard.authorize(
            index,
            adjacency=event.adjacency,
            unit=event.unit,
            sensitivity=event.sensitivity,
            sampling_rate=rate if isinstance(rate, float) else 1.0,
            levels=event.levels if isinstance(rate, float) else _with_rates(event.levels, rate),
            units=[] if batch is None else [self._units_in(batch, rate)],
            divisor=divisor,
        )
        self._sums = [known for known in self._sums if known[0] is not value]
        released = release(value, z=z, divisor=divisor, noise=self._noise)
        self._released.append(released)
        return released

    def step(self, gradient: Tensors) -> None:
        if self._plan.algorithm.private and not self._is_released(gradient):
            self._noised = False
        if self._optimizer is None:
            self._optimizer = ParameterOptimizer.of_client(
                self._plan.training.optimiser, self._local_model.parameters
            )
        self._optimizer(gradient)
        self.steps += 1

    def update(self) -> Tensors:
        update = self._difference(self._local_model.state())
        if self._noised:
            self._released.append(update)
        return update

    def update_to(self, model: Tensors) -> Tensors:
        update = self._difference(model)
        if self._is_released(model):
            self._released.append(update)
        return update

    def may_send(self, answer: Answer) -> bool:
        """Whether an answer consists of nothing but released values."""
        return all(self._is_released(values) for values in (answer.update, *answer.released))

    def _is_released(self, values: Tensors) -> bool:
        return any(known is values for known in self._released)

    def _remember(self, value: Bounded, batch: Tensor, rate: Rates = 1.0) -> Bounded:
        self._sums.append((value, batch, rate))
        return value

    def _difference(self, model: Tensors) -> Tensors:
        before = self._broadcast_model
        return {name: value - before[name].to(value) for name, value in model.items()}

    def _check_batch(self, batch: Tensor) -> Tensor:
        """Copy a batch that may be summed: distinct records, and a model without private values."""
        if not self._noised:
            raise self._refuse(
                "the model was trained without noise, and every gradient depends on every record; "
                "only a clipped update may be released"
            )
        if batch is self._all_records:
            return batch
        # Modulo the number of records, because negative indices name the same records.
        if len((batch % len(self._all_records)).unique()) < len(batch):
            raise self._refuse("a record is twice in a batch")
        return batch.clone()

    def _refuse(self, reason: str) -> BudgetExceededError:
        return BudgetExceededError(f"client {self.client_plan.name}: {reason}")

    def _select(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the inputs, targets and units of a batch."""
        units = None if self._unit_of is None else self._unit_of[batch]
        if batch is self._all_records:
            return self._inputs, self._targets, units
        return self._inputs[batch], self._targets[batch], units

    def _units_in(self, batch: Tensor, rate: Rates) -> Units:
        """Return the units that a sum depends on; a sampled one depends on all of them."""
        if rate != 1 or batch is self._all_records:
            return ALL_UNITS
        return (batch if self._unit_of is None else self._unit_of[batch].unique()).numpy()


def _with_rates(levels: Sequence[LevelTerms], rates: Sequence[float]) -> tuple[LevelTerms, ...]:
    """Return the terms of levels that were sampled at these rates; alike in bound by default."""
    bounds = [terms.ratio for terms in levels] or [1.0] * len(rates)
    return tuple(LevelTerms(*terms) for terms in zip(bounds, rates, strict=True))
