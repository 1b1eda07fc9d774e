"""All budgets, bounds, seeds and clients of a grid in one tensor program.

The numbers are those of :func:`pacdp.federation.simulate` on each cell alone, to rounding. Nothing
is released here and there is no ledger: the records are public.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping import SimulatedNoise
from pacdp.clipping.numerics import add_on_grid, grid_step
from pacdp.data import Dataset, Partition
from pacdp.errors import BudgetExceededError
from pacdp.federation import ClientPlan, Plan, Workbench
from pacdp.federation.batches import Padded, PaddedBatches
from pacdp.federation.client_context import local_batches
from pacdp.federation.engines.stacked import cannot_stack, worth_stacking
from pacdp.federation.engines.threaded import on_threads
from pacdp.federation.metrics import quick
from pacdp.federation.optimizers import Stepper
from pacdp.federation.server import AveragedModel
from pacdp.federation.weights import client_weights
from pacdp.offline.cells import Tensors, cells_for
from pacdp.offline.proxy_task import Setting, scored
from pacdp.privacy import MemoryBook

# So many numbers are in one program at most.
LARGEST = 2**22
# So many numbers of records are kept from one round to the next: a gibibyte.
ROOM = 2**28


def can_train_together(setting: Setting) -> bool:
    """Whether all cells can be one program: chains of linear layers."""
    return plans_fit_together(setting.plan(1.0, 1.0, 0))


def plans_fit_together(plan: Plan) -> bool:
    """Whether the seeds of a plan can be one program: chains of linear layers, the common loop."""
    bench = Workbench(plan)
    return not cannot_stack(bench) and worth_stacking(bench)


def score_together(
    setting: Setting, pairs: Sequence[tuple[float, float]], seeds: Sequence[int]
) -> list[list[float]]:
    """The scores of (ε, C) pairs, under each of the seeds."""
    budgets = list(dict.fromkeys(epsilon for epsilon, _ in pairs))
    bounds = torch.tensor([bound for _, bound in pairs])

    def bounds_of(jobs: Sequence[_Job], number: int) -> Tensor:
        factor = setting.schedule.factor(number, rounds=jobs[0].plan.rounds)
        return (bounds * factor).expand(len(jobs), -1)

    program = _Program(
        # Bounds come from the pairs; what differs between budgets is the noise.
        [[setting.plan(e, 1.0, seed) for e in budgets] for seed in seeds],
        [setting.records(seed) for seed in seeds],
        budget_of=[budgets.index(epsilon) for epsilon, _ in pairs],
        bounds=bounds_of,
        initial=setting.initial,
    )
    return program.scores(setting.proxy.data)


def score_plans(
    plans: Sequence[Plan],
    records: Sequence[tuple[Dataset, Partition]],
    *,
    initial: Mapping[str, Tensor] | None = None,
) -> list[float]:
    """The scores of plans that differ in their seeds, each on its own partition of one data set."""
    bounds = [planned_bounds(plan) for plan in plans]

    def bounds_of(jobs: Sequence[_Job], number: int) -> Tensor:
        return torch.tensor([[bounds[job.seed][job.client][number]] for job in jobs])

    program = _Program(
        [[plan] for plan in plans], records, budget_of=[0], bounds=bounds_of, initial=initial
    )
    return [score for (score,) in program.scores(records[0][0])]


def planned_bounds(plan: Plan) -> list[list[float]]:
    """C_i^t of each client in each round."""
    bound, rounds = plan.made_method.bound, plan.rounds
    levels = {
        epsilon: [bound(epsilon, round=number, rounds=rounds) for number in range(rounds)]
        for epsilon in {task.epsilon for task in plan.clients}
    }
    return [levels[task.epsilon] for task in plan.clients]


@dataclass(frozen=True)
class _Job:
    """One client's participation under one seed."""

    seed: int
    """Its place among the seeds."""
    client: int
    plan: Plan
    scale: float
    """Of its noise."""

    @property
    def task(self) -> ClientPlan:
        """The client's part of the plan."""
        return self.plan.clients[self.client]


class _Program:
    """Algorithm 1 for everything at once."""

    def __init__(
        self,
        plans: Sequence[Sequence[Plan]],
        records: Sequence[tuple[Dataset, Partition]],
        *,
        budget_of: Sequence[int],
        bounds: Callable[[Sequence[_Job], int], Tensor],
        initial: Mapping[str, Tensor] | None,
    ) -> None:
        """Plans by seed and budget, the budget of each cell, and bounds (jobs, cells) by round."""
        self._plans = plans
        self._budget_of = list(budget_of)
        self._bounds = bounds
        self._records = [
            [own.tensors() for own in split.client_records(data)] for data, split in records
        ]
        self._kept: dict[tuple[tuple[int, int], ...], Padded] = {}
        self._room = ROOM
        benches = [Workbench(own[0]) for own in plans]
        self._first = [bench.state() if initial is None else dict(initial) for bench in benches]
        self.cells = cells_for(benches[0], len(self._budget_of))

    def scores(self, data: Dataset) -> list[list[float]]:
        """How good each cell of each seed is on the test records."""
        trained = self.train()
        classes = len(data.classes)
        outputs = self.cells.outputs(trained, data.test.tensors()[0]).double()
        answers = torch.softmax(outputs, -1) if classes else outputs.squeeze(-1)
        return [
            [scored(quick(one, data.test.labels, classes=classes)) for one in own]
            for own in answers.numpy()
        ]

    def train(self) -> Tensors:
        """The servers' models in the end: (seeds, ...)."""
        some = self._plans[0][0]
        model = self.cells.start(self._first)
        # A server whose clients all refuse takes no step, so each seed needs its own optimiser.
        moves = [
            Stepper.of_server(some.server, {name: value[place] for name, value in model.items()})
            for place in range(len(self._plans))
        ]
        averaged = AveragedModel(some)
        books = [[_book(plans[0], c) for c in range(len(some.clients))] for plans in self._plans]
        for number in range(some.rounds):
            jobs = [
                _Job(place, client, plans[0], scale)
                for place, plans in enumerate(self._plans)
                for client in plans[0].participants(number)
                if (scale := _paid(plans[0], client, number, books[place][client])) is not None
            ]
            if jobs:
                groups = list(self._groups(jobs))
                updates = on_threads(
                    partial(self._updates, number=number, model=model),
                    groups,
                    most=None if self._heavy else 1,
                )
                gradients = self._combined(number, groups, updates, model)
                for place in {job.seed for job in jobs}:
                    moves[place]({name: value[place] for name, value in gradients.items()})
            averaged.add(number, model)
        return averaged.of(model)

    @property
    def _heavy(self) -> bool:
        """Whether a step is mostly arithmetic; of the rest Python does one thing at a time."""
        size = sum(value.numel() for value in self._first[0].values()) * len(self._budget_of)
        return size * max(task.divisor for task in self._plans[0][0].clients) > 2**22

    def _groups(self, jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
        """Jobs with batches of similar size together, the most records first, within a limit."""
        group: list[_Job] = []
        width = len(self._budget_of) * int(self._first[0][next(iter(self._first[0]))].shape[0])
        for job in sorted(jobs, key=lambda job: job.task.records, reverse=True):
            if group:
                largest = group[0].task
                full = (len(group) + 1) * math.ceil(largest.divisor) * width > LARGEST
                # Padding costs what a batch is short of the longest one.
                if full or 2 * job.task.divisor < largest.divisor:
                    yield group
                    group = []
            group.append(job)
        if group:
            yield group

    def _updates(self, jobs: Sequence[_Job], number: int, model: Tensors) -> list[Tensors]:
        """How each job moves its seed's models."""
        cells = self.cells
        seeds = torch.tensor([job.seed for job in jobs])
        start = {name: value[seeds] for name, value in model.items()}
        local = {name: value.clone() for name, value in start.items()}
        tasks = [job.task for job in jobs]
        move = Stepper.of_client(jobs[0].plan.training.optimiser, local)
        bounds = self._bounds(jobs, number)
        coordinates = sum(value.numel() for value in self._first[0].values())
        sensitivities = bounds.double() * jobs[0].plan.adjacency.sensitivity
        steps = torch.from_numpy(grid_step(sensitivities.numpy(), coordinates))
        # σ in grid steps.
        scales = (self._noises(jobs) * bounds / steps).float()
        steps = steps.float()
        divisors = torch.tensor([task.divisor for task in tasks])[:, None].expand_as(scales)
        draws = torch.stack(
            [
                SimulatedNoise(seed=job.plan.seed, client=job.client, round=number)
                .normals(tasks[0].steps * coordinates)
                .view(-1, coordinates)
                for job in jobs
            ],
            1,
        )
        batches = PaddedBatches(
            self._padded(jobs),
            [local_batches(job.plan, job.client, number) for job in jobs],
        )
        ended: list[Tensors] = []
        for step in range(tasks[0].steps):
            active = sum(task.steps > step for task in tasks)
            inputs, targets, present = batches.next(active)
            sums = cells.sums(
                {name: value[:active] for name, value in local.items()},
                *(inputs, targets),
                bounds=bounds[:active],
                present=present,
            )
            gradient = {}
            parts = draws[step, :active].split([v.numel() for v in self._first[0].values()], 1)
            for (name, like), part in zip(self._first[0].items(), parts, strict=True):
                clean = sums[name]
                normals = cells.shaped(part.reshape(active, *like.shape))
                value = add_on_grid(
                    clean,
                    (normals * cells.spread(scales[:active], clean)).round_(),
                    step=cells.spread(steps[:active], clean),
                    divisor=cells.spread(divisors[:active], clean),
                )
                still = torch.zeros_like(local[name][active:])
                gradient[name] = value if active == len(jobs) else torch.cat([value, still])
            move(gradient)
            done = sum(task.steps > step + 1 for task in tasks)
            for job in range(active - 1, done - 1, -1):
                ended.append({name: local[name][job] - start[name][job] for name in local})
        return ended[::-1]

    def _padded(self, jobs: Sequence[_Job]) -> Padded:
        """The records of jobs; kept, if all fit, because most plans ask the same ones again."""
        key = tuple((job.seed, job.client) for job in jobs)
        if key in self._kept:
            return self._kept[key]
        made = Padded([self._records[job.seed][job.client] for job in jobs])
        self._room -= made.inputs.numel()
        if self._room > 0:
            self._kept[key] = made
        return made

    def _noises(self, jobs: Sequence[_Job]) -> Tensor:
        """σ/C of each job and cell."""
        table = [
            [plan.clients[job.client].charges[0].noise_multiplier * job.scale for plan in plans]
            for job in jobs
            for plans in [self._plans[job.seed]]
        ]
        return torch.tensor(table, dtype=torch.float64)[:, self._budget_of]

    def _combined(
        self,
        number: int,
        groups: Sequence[Sequence[_Job]],
        updates: Sequence[Sequence[Tensors]],
        model: Tensors,
    ) -> Tensors:
        """The servers' gradients: minus the weighted mean of the updates, in every cell."""
        total = {name: torch.zeros_like(value) for name, value in model.items()}
        moved = {
            (job.seed, job.client): (job, update)
            for jobs, own in zip(groups, updates, strict=True)
            for job, update in zip(jobs, own, strict=True)
        }
        for place, plans in enumerate(self._plans):
            mine = [moved[key] for key in sorted(moved) if key[0] == place]
            if not mine:
                continue
            answered, scales = [j.client for j, _ in mine], [j.scale for j, _ in mine]
            by_budget = [client_weights(p, answered, round=number, scales=scales) for p in plans]
            weights = torch.tensor(np.stack(by_budget, 1)).float()[:, self._budget_of]
            stacked = {name: torch.stack([u[name] for _, u in mine]) for name in model}
            # What is not finite would spoil a model for good, and is left out of its cell.
            weights *= self.cells.finite(stacked)
            weights /= weights.sum(0).clamp(min=1e-30)
            for name, value in stacked.items():
                share = self.cells.spread(weights, value)
                total[name][place] = -(torch.where(share > 0, value, 0) * share).sum(0)
        return total


def _book(plan: Plan, client: int) -> MemoryBook:
    budget = plan.budget(client)
    assert budget is not None
    return MemoryBook(budget)


def _paid(plan: Plan, client: int, number: int, book: MemoryBook) -> float | None:
    """The scale of a client's noise, or None where its plan is used up; so in every cell alike."""
    scale = plan.noise_scale(client, number, book)
    if math.isinf(scale):
        return None
    try:
        book.reserve(
            *plan.participation(client, scale=scale),
            run=plan.run,
            at_most=plan.most_releases(client),
        )
    except BudgetExceededError:
        return None
    return scale
