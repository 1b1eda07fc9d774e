"""One participation of one client: what a method may do, and what of it may leave.

The method asks for sums, noise and steps; this is where each of them is held against what was paid
for. A release that was not, a record that is in two batches of a pass, a model that was trained
without noise: refused here, whatever the method meant.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pacdp.clipping import Bounded, NoiseSource, centred_count, clip_upload, release
from pacdp.errors import BudgetExceededError
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.federation.messages import Broadcast
from pacdp.federation.optimizers import ParameterOptimizer
from pacdp.federation.plan import ClientPlan, Plan
from pacdp.federation.release_guard import ALL_UNITS, ReleaseGuard, Units
from pacdp.methods import Answer, SharedState

# Where the noise and the hidden coins of a round come from.
NoiseOf = Callable[[int], NoiseSource]


def local_batches(plan: Plan, client: int, round: int) -> Iterator[NDArray[np.int64] | None]:  # noqa: A002
    """The units of each local step; None where they are all.

    It depends on public numbers alone: each unit is in one batch of each pass.
    """
    client_plan = plan.clients[client]
    if client_plan.batches == 1:
        for _ in range(client_plan.steps):
            yield None
        return
    # As np.array_split does: the first parts have one more where it does not come out even.
    size, longer = divmod(client_plan.units, client_plan.batches)
    border = longer * (size + 1)
    for number in range(client_plan.passes):
        order = np.random.default_rng([plan.seed, client, round, number]).permutation(
            client_plan.units
        )
        parts = [
            *np.sort(order[:border].reshape(longer, size + 1), axis=1),
            *np.sort(order[border:].reshape(-1, size), axis=1),
        ]
        yield from parts[: client_plan.steps - number * client_plan.batches]


class GuardedClientContext:
    """One participation as the method sees it. See :class:`~pacdp.methods.ClientContext`."""

    def __init__(
        self,
        plan: Plan,
        client: int,
        broadcast: Broadcast,
        *,
        scale: float,
        records: tuple[Tensor, Tensor],
        units: Tensor | None,
        local_model: LocalModel,
        noise: NoiseSource,
    ) -> None:
        self._plan = plan
        self._client = client
        self._broadcast = broadcast
        self._inputs, self._targets = records
        self._unit_of = units
        self._local_model = local_model
        self._noise = noise
        self._guard = ReleaseGuard(plan, client, scale=scale)
        self._step: ParameterOptimizer | None = None
        self._everything = torch.arange(len(self._inputs))
        # Kept by identity, with the objects themselves so that no other can take their place:
        # what was summed over which records, drawn at which rate, and what may leave.
        self._sums: list[tuple[Bounded, Tensor, float]] = []
        self._may_leave: list[Tensors] = []
        self.steps = 0
        # Whether the local model is made of nothing but released values.
        self._clean = True

    @property
    def client_id(self) -> int:
        return self._client

    @property
    def shared_state(self) -> SharedState:
        return self._broadcast.shared_state

    @property
    def round(self) -> int:
        return self._broadcast.round

    @property
    def rounds(self) -> int:
        return self._plan.rounds

    @property
    def client_plan(self) -> ClientPlan:
        return self._plan.clients[self._client]

    def batches(self) -> Iterator[Tensor]:
        for chosen in local_batches(self._plan, self._client, self.round):
            yield self._everything if chosen is None else self._of_units(torch.from_numpy(chosen))

    def _of_units(self, chosen: Tensor) -> Tensor:
        """The records of some units."""
        units = self._unit_of
        return chosen if units is None else torch.nonzero(torch.isin(units, chosen)).flatten()

    def _checked(self, batch: Tensor) -> Tensor:
        """A copy of a batch that may be summed: records once each, on a model that is clean."""
        if not self._clean:
            raise BudgetExceededError(
                f"client {self.client_plan.name}: the model was trained without noise, and every "
                "gradient depends on every record; only a clipped update may be released"
            )
        # From the end counted, a record would have a second number.
        distinct = len((batch % len(self._everything)).unique()) == len(batch)
        if batch is not self._everything and not distinct:
            raise BudgetExceededError(
                f"client {self.client_plan.name}: a record is twice in a batch"
            )
        return batch if batch is self._everything else batch.clone()

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        return self._summed(self._checked(batch), bound, rate=1.0, present=None)

    def sampled_sum(self, rate: float, bound: float) -> Bounded:
        # Every record is computed, and the coins are factors of 0 or 1: neither the time taken nor
        # the rounding of other records reveals which were drawn.
        present = self._noise.coins(self.client_plan.units, rate)
        return self._summed(self._checked(self._everything), bound, rate=rate, present=present)

    def _summed(
        self, batch: Tensor, bound: float, *, rate: float, present: Tensor | None
    ) -> Bounded:
        inputs, targets = self._records(batch)
        total = self._local_model.gradient(
            *(inputs, targets), clipping_bound=bound, units=self._units(batch), present=present
        )
        self._sums.append((total, batch, rate))
        return total

    def norms(self, batch: Tensor) -> Tensor:
        if self._plan.algorithm.private:
            raise BudgetExceededError(f"client {self.client_plan.name}: lengths are not paid for")
        return self._norms(batch)

    def _norms(self, batch: Tensor) -> Tensor:
        inputs, targets = self._records(batch)
        return self._local_model.gradient.norms(inputs, targets, units=self._units(batch))

    def count_within(self, batch: Tensor, bound: float) -> Bounded:
        batch = self._checked(batch)
        count = centred_count(
            self._norms(batch) <= bound,
            adjacency=self._plan.adjacency,
            unit=self._plan.unit,
        )
        self._sums.append((count, batch, 1.0))
        return count

    def clipped_update(self, bound: float) -> Bounded:
        return self._clipped(self._difference(self._local_model.state()), bound)

    def clipped_model(self, bound: float) -> Bounded:
        return self._clipped(self._local_model.state(), bound)

    def _clipped(self, values: Tensors, bound: float) -> Bounded:
        plan = self._plan
        made = clip_upload(values, bound=bound, adjacency=plan.adjacency, unit=plan.unit)
        self._sums.append((made, self._everything, 1.0))
        return made

    def plain_mean(self, batch: Tensor) -> Tensors:
        inputs, targets = self._records(batch)
        with torch.enable_grad():
            loss = self._local_model.loss(self._local_model.model(inputs), targets).mean()
            found = torch.autograd.grad(loss, list(self._local_model.parameters.values()))
        return dict(zip(self._local_model.parameters, found, strict=True))

    def _units(self, batch: Tensor) -> Tensor | None:
        units = self._unit_of
        return None if units is None else units[batch]

    def _records(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._inputs, self._targets
        return (inputs, targets) if batch is self._everything else (inputs[batch], targets[batch])

    def release(self, value: Bounded, *, index: int = 0, divisor: float | None = None) -> Tensors:
        paid = self._guard.paid(index)
        records, drawn = next(
            ((batch, rate) for known, batch, rate in self._sums if known is value), (None, 0.0)
        )
        event = value.event(paid.z)
        public_divisor = self.client_plan.divisor if divisor is None else divisor
        self._guard.authorize(
            index,
            adjacency=event.adjacency,
            unit=event.unit,
            sensitivity=event.sensitivity,
            # A value that was not computed here is refused: nothing is paid for at rate 0.
            sampling_rate=drawn,
            units=[] if records is None else [self._units_of(records, drawn)],
            divisor=public_divisor,
        )
        self._sums = [entry for entry in self._sums if entry[0] is not value]
        made = release(value, z=paid.z, divisor=public_divisor, noise=self._noise)
        self._may_leave.append(made)
        return made

    def _units_of(self, records: Tensor, rate: float) -> Units:
        """The units that a sum depends on; of a sampled one, any might have been drawn."""
        if rate < 1:
            return ALL_UNITS
        units = self._unit_of
        return (records if units is None else units[records].unique()).numpy()

    def step(self, gradient: Tensors) -> None:
        known = any(made is gradient for made in self._may_leave)
        self._clean = self._clean and (known or not self._plan.algorithm.private)
        if self._step is None:
            self._step = ParameterOptimizer.of_client(
                self._plan.training.optimiser, self._local_model.parameters
            )
        self._step(gradient)
        self.steps += 1

    def update(self) -> Tensors:
        made = self._difference(self._local_model.state())
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
