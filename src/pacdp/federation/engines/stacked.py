"""The clients of a round in one tensor program.

Clients that take the same steps on models of the same shape form a batch of small models. Each has
its own records, bound, noise and ledger; only the arithmetic is shared. This works for sequential
models and for methods with the common training loop (:meth:`pacdp.methods.Method.train`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacdp.clipping import NoiseSource, SimulatedNoise, StackedGrid
from pacdp.clipping.numerics import smallest_ratio
from pacdp.clipping.sequential import LinearStep
from pacdp.errors import BudgetExceededError, InputError, add_location
from pacdp.federation.batches import Padded, PaddedBatches
from pacdp.federation.client import Client
from pacdp.federation.client_context import local_batches
from pacdp.federation.engines.layouts import CellsFirst, Layout
from pacdp.federation.engines.thread_pool import on_threads
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.federation.messages import Answers, Broadcast, Refusal, Reply
from pacdp.federation.optimizers import ParameterOptimizer
from pacdp.federation.plan import Plan
from pacdp.federation.release_guard import ALL_UNITS, ReleaseGuard
from pacdp.federation.uploads import coarsen, upload_step
from pacdp.methods import ClientPlan, Method
from pacdp.validation import FloatArray

# The largest number of record values in one program: what a core's cache can hold.
LARGEST_STACK = 2**20
# The largest number of noise values that are drawn at once for a group of clients.
LARGEST_DRAW = 2**20
# From this many multiplications per step on, groups of clients run on several cores: below, most of
# the time is spent in Python, which runs on one.
HEAVY_STEP = 2**20


def _is_covered(plan: Plan, client: ClientPlan) -> bool:
    """Whether the common loop releases no more than a participation pays for."""
    if len(client.charges) != 1:
        return False
    (spec,) = client.charges
    plain = not spec.sampled and spec.sensitivity == plan.adjacency.sensitivity
    return plain and spec.each >= client.passes


def level_ratios(client: ClientPlan) -> tuple[float, ...]:
    """Return C_j/C of a client's budget levels, or of all records as one level."""
    return tuple(terms.ratio for terms in client.level_terms) or (1.0,)


@dataclass(frozen=True)
class Job:
    """A participation that has been paid for."""

    id: int
    client: Client
    noise_scale: float

    @property
    def client_plan(self) -> ClientPlan:
        """The client's part of the plan."""
        return self.client.client_plan


class StackedEngine:
    """Computes the clients of a round together.

    With a layout of several cells it trains a grid: subclasses then define the initial weights of a
    job, and the bounds and noise multipliers of its cells.
    """

    name = "stacked"

    def __init__(self, local_model: LocalModel, *, layout: Layout | None = None) -> None:
        self._local_model = local_model
        self._plan = local_model.plan
        self._layout = layout or CellsFirst(local_model, 1)

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """Return why the clients of a plan cannot be computed together; empty if they can."""
        plan, model = local_model.plan, local_model.gradient.sequential
        if type(plan.algorithm).train is not Method.train:
            return f"{plan.method} trains in its own way; must be a method with the common loop"
        if plan.unit != "record":
            return f"one {plan.unit} at a time is clipped; must be one record"
        if model is None or not model.accepts(len(plan.shape)):
            return (
                "the model cannot be stacked; must be a Sequential of Linear, Conv2d, ReLU, Tanh, "
                "MaxPool2d and Flatten"
            )
        if not all(_is_covered(plan, client) for client in plan.clients):
            return f"what {plan.method} is charged for is not one clipped sum in each pass"
        return ""

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Whether all layers are linear: stacking gains nothing for convolutions."""
        model = local_model.gradient.sequential
        return model is not None and all(
            isinstance(step, LinearStep) or not hasattr(step, "weight") for step in model.steps
        )

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Compute each client's answer. All of them pay before anything is computed."""
        self._load(broadcast)
        answers: dict[int, Reply | Refusal] = {}
        jobs = []
        for number, client in clients.items():
            try:
                jobs.append(Job(number, client, client.accept(broadcast)))
            except BudgetExceededError as error:
                answers[number] = Refusal(number, str(error))
        divisor = max(client.divisor for client in self._plan.clients)
        heavy = self._local_model.coordinates * self._layout.cells * divisor > HEAVY_STEP
        trained = on_threads(
            lambda group: self._train(group, broadcast),
            list(self._groups(jobs)),
            most=None if heavy else 1,
        )
        answers |= {reply.client: reply for replies in trained for reply in replies}
        return {number: answers[number] for number in clients}

    def _load(self, broadcast: Broadcast) -> None:
        """Refuse a broadcast that does not fit the model, before anybody pays."""
        self._local_model.load(broadcast.model)

    def _initial_weights(self, jobs: Sequence[Job], broadcast: Broadcast) -> Tensors:
        return self._layout.expand([self._local_model.state()] * len(jobs))

    def _bounds(self, job: Job, round: int) -> FloatArray:  # noqa: A002
        """Return the clipping bound of each cell."""
        plan = self._plan
        return np.array(
            [plan.algorithm.bound(job.client_plan.epsilon, round=round, rounds=plan.rounds)]
        )

    def _noise_multipliers(self, job: Job) -> FloatArray:
        """Return σ/C of each cell under even spending."""
        return np.array([job.client_plan.charges[0].noise_multiplier])

    def _divisors(self, job: Job) -> FloatArray:
        """Return the public divisor of each cell."""
        return np.array([job.client_plan.divisor])

    def _ratios(self, job: Job) -> FloatArray:
        """Return C_j/C of each cell's budget levels: (cells, levels)."""
        return np.array([level_ratios(job.client_plan)])

    def _padded(self, jobs: Sequence[Job]) -> Padded:
        levels = [job.client.levels for job in jobs if job.client.levels is not None]
        if levels and len(levels) != len(jobs):
            raise InputError("clients: some have budget levels and others have not; must be alike")
        return Padded(
            [job.client.records.tensors(self._plan.task, self._local_model.device) for job in jobs],
            levels or None,
        )

    def _size(self, job: Job) -> int:
        """Return the number of values that a job adds to a program."""
        return job.client_plan.records * math.prod(self._plan.shape)

    def _groups(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Group jobs with batches of similar size, the largest first, up to the size limit."""
        group: list[Job] = []
        # Sorted by records, jobs are also sorted by steps.
        for job in sorted(jobs, key=lambda job: job.client_plan.records, reverse=True):
            if group:
                full = (len(group) + 1) * self._size(group[0]) > LARGEST_STACK
                # Short batches are padded to the longest, which wastes time.
                if full or 2 * job.client_plan.divisor < group[0].client_plan.divisor:
                    yield group
                    group = []
            group.append(job)
        if group:
            yield group

    def _train(self, group: Sequence[Job], broadcast: Broadcast) -> list[Reply]:
        """Run the common training loop for a group; clients with most steps come first."""
        number, clients = broadcast.round, [job.client_plan for job in group]
        orders = [list(local_batches(job.client.plan, job.client.number, number)) for job in group]
        bounds = np.array([self._bounds(job, number) for job in group])
        multipliers = np.array([self._noise_multipliers(job) for job in group])
        multipliers *= np.array([[job.noise_scale] for job in group])
        sensitivity = self._plan.adjacency.sensitivity
        ratios = None
        if any(job.client.levels is not None for job in group):
            ratios = np.array([self._ratios(job) for job in group])
        for job, order in zip(group, orders, strict=True):
            self._authorize(job, order, by_level=ratios is not None)
        grid = StackedGrid(
            bounds * sensitivity,
            self._local_model.coordinates,
            z=multipliers / sensitivity,
            divisors=np.array([self._divisors(job) for job in group]),
            smallest_sensitivities=None
            if ratios is None
            else bounds * sensitivity * smallest_ratio(ratios),
        )
        noise = _StackedNoise(
            [job.client.noise_source(number) for job in group],
            [client.steps for client in clients],
            scales=grid.scales[:, 0].tolist() if self._layout.cells == 1 else None,
            coordinates=self._local_model.coordinates,
        )
        start = self._initial_weights(group, broadcast)
        weights = {name: value.clone() for name, value in start.items()}
        optimizer = ParameterOptimizer.of_client(self._plan.training.optimiser, weights)
        batches = PaddedBatches(self._padded(group), orders)
        updates: list[Tensors] = []
        for step in range(clients[0].steps):
            active = sum(client.steps > step for client in clients)
            batch = batches.next(active)
            try:
                sums = self._layout.sums(
                    {name: value[:active] for name, value in weights.items()},
                    batch,
                    bounds=bounds[:active],
                    ratios=None if ratios is None else ratios[:active],
                )
                released = self._layout.release(sums, noise.next(active), grid)
            except Exception as error:
                raise add_location(error, _describe(group[:active], number, step)) from error
            # Finished clients get no gradients; their updates have been taken already.
            optimizer(released)
            unfinished = sum(client.steps > step + 1 for client in clients)
            updates += [
                {name: value[job] - start[name][job] for name, value in weights.items()}
                for job in range(active - 1, unfinished - 1, -1)
            ]
        return [
            Reply(
                *(job.id, number, self._as_update(self._coarsen(job, broadcast, update))),
                noise_scale=job.noise_scale,
            )
            for job, update in zip(reversed(group), updates, strict=True)
        ]

    def _coarsen(self, job: Job, broadcast: Broadcast, update: Tensors) -> Tensors:
        """Round the update of each cell, if the plan says so."""
        steps = self._upload_steps(job, broadcast)
        if steps is None:
            return update
        cells = torch.from_numpy(steps).float()[None]
        return {
            name: coarsen(value, self._layout.spread(cells.to(value), value[None])[0])
            for name, value in update.items()
        }

    def _upload_steps(self, job: Job, broadcast: Broadcast) -> FloatArray | None:
        """Return the step to which each cell rounds its update; None if it does not."""
        client, state = job.client, broadcast.shared_state
        step = upload_step(
            *(client.plan, client.number, broadcast.round),
            scale=job.noise_scale,
            shared_state=state,
        )
        return None if step is None else np.array([step])

    def _as_update(self, update: Tensors) -> Tensors:
        """Remove the dimension of the only cell from an update."""
        return {name: value.squeeze(0) for name, value in update.items()}

    def _authorize(
        self, job: Job, order: Sequence[NDArray[np.int64] | None], *, by_level: bool
    ) -> None:
        """Compare the releases of a whole participation with what was paid for."""
        plan = job.client.plan
        ReleaseGuard(plan, job.client.number, scale=job.noise_scale).authorize(
            0,
            adjacency=plan.adjacency,
            unit="record",
            sensitivity=plan.adjacency.sensitivity,
            sampling_rate=1.0,
            levels=job.client_plan.charges[0].levels if by_level else (),
            units=[ALL_UNITS if batch is None else batch for batch in order],
            divisor=job.client_plan.divisor,
        )


class _StackedNoise:
    """The noise of several clients, returned step by step but drawn for many steps at once.

    With scales it consists of whole numbers of grid steps; without them, it is the standard normal
    noise of a simulation. Clients with most steps come first.
    """

    def __init__(
        self,
        sources: Sequence[NoiseSource],
        steps: Sequence[int],
        *,
        scales: Sequence[float] | None,
        coordinates: int,
    ) -> None:
        self._sources, self._scales = sources, scales
        self._steps, self._coordinates = list(steps), coordinates
        self._drawn: Iterator[Tensor] = iter(())

    def next(self, clients: int) -> Tensor:
        """Return the noise of the first clients in the next step: (clients, coordinates)."""
        drawn = next(self._drawn, None)
        if drawn is None:
            self._drawn = iter(self._draw(clients))
            drawn = next(self._drawn)
        return drawn[:clients]

    def _draw(self, clients: int) -> Tensor:
        """Draw the noise of many steps: (steps, clients, coordinates)."""
        most = max(1, LARGEST_DRAW // (clients * self._coordinates))
        counts = [min(steps, most) for steps in self._steps[:clients]]
        rows = [self._draw_client(client, count) for client, count in enumerate(counts)]
        self._steps = [
            left - count for left, count in zip(self._steps[:clients], counts, strict=True)
        ]
        return pad_sequence(rows)

    def _draw_client(self, client: int, steps: int) -> Tensor:
        source, count = self._sources[client], steps * self._coordinates
        if self._scales is not None:
            return source.integers(count, self._scales[client]).view(steps, -1)
        assert isinstance(source, SimulatedNoise)
        return source.normals(count).view(steps, -1)


def _describe(group: Sequence[Job], round: int, step: int) -> str:  # noqa: A002
    names = ", ".join(job.client_plan.name for job in group[:3])
    more = f" and {len(group) - 3} more" if len(group) > 3 else ""
    return (
        f"clients {names}{more}, round {round + 1}, step {step + 1} "
        "(the engine serial names the client)"
    )
