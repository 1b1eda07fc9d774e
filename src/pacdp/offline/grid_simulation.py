"""Simulation of a whole (ε, C) grid in a single run of the stacked engine.

A cell is a pair of a budget ε and a clipping bound C. All cells, seeds and clients are trained
together; the results equal those of :func:`pacdp.federation.simulate` for each cell, up to
rounding. The records are public, and the ledgers are kept in memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pacdp.clipping import CrossEntropy, SquaredError
from pacdp.data import Dataset, Partition
from pacdp.federation import LocalModel, Plan
from pacdp.federation.batches import Padded
from pacdp.federation.client import Client, simulated_noise
from pacdp.federation.engines.layouts import CellsFirst, CellsLast, Layout
from pacdp.federation.engines.stacked import Job, StackedEngine, level_ratios
from pacdp.federation.local_model import Tensors
from pacdp.federation.messages import Answers, Broadcast, Reply
from pacdp.federation.optimizers import update_gains
from pacdp.federation.rounds import run_rounds
from pacdp.federation.server import RoundOutcome, Server
from pacdp.federation.uploads import coarse_steps
from pacdp.federation.weights import client_weights
from pacdp.offline.proxy_task import ProxyTask
from pacdp.validation import FloatArray

# Cache padded records up to this many float32 values (1 GiB).
LARGEST_CACHE = 2**28


def can_stack_plan(plan: Plan) -> bool:
    """Return whether all seeds and cells of a plan can be trained in one stacked run."""
    local_model = LocalModel(plan)
    return not StackedEngine.explain_misfit(local_model) and StackedEngine.is_preferred(local_model)


def score_pairs(
    proxy_task: ProxyTask, pairs: Sequence[tuple[float, float]], seeds: Sequence[int]
) -> list[list[float]]:
    """Return the scores of (ε, C) pairs for each of the seeds."""
    budgets = list(dict.fromkeys(epsilon for epsilon, _ in pairs))
    rounds = proxy_task.recipe.training.rounds
    factors = [proxy_task.schedule.factor(number, rounds=rounds) for number in range(rounds)]
    simulation = GridSimulation(
        # Bounds are taken from the pairs; plans of different budgets differ in their noise.
        [[proxy_task.plan(epsilon, 1.0, seed) for epsilon in budgets] for seed in seeds],
        [proxy_task.records(seed) for seed in seeds],
        budget_of=[budgets.index(epsilon) for epsilon, _ in pairs],
        bounds=np.outer(factors, [bound for _, bound in pairs]),
        initial=proxy_task.initial,
    )
    return simulation.scores(proxy_task.proxy.data)


def score_plans(
    plans: Sequence[Plan],
    records: Sequence[tuple[Dataset, Partition]],
    *,
    initial: Mapping[str, Tensor] | None = None,
) -> list[float]:
    """Return the scores of plans that differ in their seeds, each on its own partition."""
    bounds = np.array([planned_bounds(plan) for plan in plans])
    simulation = GridSimulation(
        [[plan] for plan in plans],
        records,
        budget_of=[0],
        bounds=bounds[..., np.newaxis],
        initial=initial,
    )
    return [score for (score,) in simulation.scores(records[0][0])]


def planned_bounds(plan: Plan) -> list[list[float]]:
    """Return C_i^t of each client in each round."""
    bound, rounds = plan.algorithm.bound, plan.rounds
    levels = {
        epsilon: [bound(epsilon, round=number, rounds=rounds) for number in range(rounds)]
        for epsilon in {client.epsilon for client in plan.clients}
    }
    return [levels[client.epsilon] for client in plan.clients]


class GridSimulation:
    """Trains all cells for all seeds. Implements both RoundServer and Transport.

    ``plans[seed_index]`` are the plans by budget, which differ in their noise only; ``budget_of``
    is the index of each cell's budget, and ``bounds`` broadcasts to (seeds, clients, rounds,
    cells). Client ids run through all seeds: seed_index * clients_per_seed + number.
    """

    def __init__(
        self,
        plans: Sequence[Sequence[Plan]],
        records: Sequence[tuple[Dataset, Partition]],
        *,
        budget_of: Sequence[int],
        bounds: FloatArray,
        initial: Mapping[str, Tensor] | None,
    ) -> None:
        local_models = [LocalModel(by_budget[0]) for by_budget in plans]
        self._layout = _layout_for(local_models[0], len(budget_of))
        self._clients_per_seed = len(plans[0][0].clients)
        self._servers = [
            _CellServer(
                *(by_budget, local_model.state() if initial is None else dict(initial)),
                layout=self._layout,
                budget_of=budget_of,
            )
            for by_budget, local_model in zip(plans, local_models, strict=True)
        ]
        self._clients = [
            # checked=True skips the checks of the records, which are public.
            Client(
                *(number, by_budget[0], client_records),
                noise=simulated_noise(by_budget[0].seed, number),
                local_model=local_model,
                checked=True,
            )
            for by_budget, local_model, (data, split) in zip(
                plans, local_models, records, strict=True
            )
            for number, client_records in enumerate(split.client_records(data))
        ]
        self._engine = _GridEngine(
            local_models[0], self._layout, plans=plans, budget_of=budget_of, bounds=bounds
        )

    def scores(self, data: Dataset) -> list[list[float]]:
        """Train, and score each cell of each seed on the test records."""
        task, outputs = data.task, self._layout.outputs(self.train(), data.test.inputs())
        return [
            [task.score(task.quick_metrics(cell, data.test.labels)) for cell in seed]
            for seed in task.predict(outputs)
        ]

    def train(self) -> Tensors:
        """Run all rounds, and return the final models: (seeds, ...) in the engine's layout."""
        run_rounds(self, self)
        return _stack([server.model for server in self._servers])

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""
        return self._servers[0].rounds

    def participants(self, round: int) -> list[int]:  # noqa: A002
        """Return the clients of all seeds that are asked in a round."""
        return [
            seed_index * self._clients_per_seed + client
            for seed_index, server in enumerate(self._servers)
            for client in server.participants(round)
        ]

    def broadcast(self, round: int) -> Broadcast:  # noqa: A002
        """Return the models of all seeds."""
        parts = [server.broadcast(round) for server in self._servers]
        return Broadcast(round, _stack([part.model for part in parts]), parts[0].shared_state)

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Return the answers of the stacked engine."""
        return self._engine.answer({who: self._clients[who] for who in client_ids}, broadcast)

    def complete_round(
        self,
        round: int,  # noqa: A002
        asked: Sequence[int],
        answers: Answers,
    ) -> RoundOutcome:
        """Let each seed's server combine the replies of its own clients."""
        replies = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Reply)]
        for seed_index, server in enumerate(self._servers):
            first = seed_index * self._clients_per_seed
            numbers = range(first, first + self._clients_per_seed)
            server.combine(
                [replace(r, client=r.client - first) for r in replies if r.client in numbers]
            )
            server.finish_round(round)
        answered = tuple(reply.client for reply in replies)
        refused = tuple(who for who in asked if who not in answered)
        return RoundOutcome(
            round=round, asked=tuple(asked), answered=answered, refused=refused, failed=()
        )


class _CellServer(Server):
    """The servers of all cells for one seed; tensors of the model have a cell dimension."""

    def __init__(
        self, plans: Sequence[Plan], initial: Tensors, *, layout: Layout, budget_of: Sequence[int]
    ) -> None:
        expanded = {name: value[0] for name, value in layout.expand([initial]).items()}
        super().__init__(plans[0], expanded, noise=simulated_noise(plans[0].seed, -1))
        self._plans, self._layout, self._budget_of = plans, layout, list(budget_of)

    def _usable(self, replies: Sequence[Reply]) -> list[Reply]:
        # Non-finite updates are dropped per cell, in _mean_update.
        return list(replies)

    def _mean_update(self, replies: Sequence[Reply]) -> Tensors:
        by_budget = [
            client_weights(
                plan,
                [reply.client for reply in replies],
                round=replies[0].round,
                scales=[reply.noise_scale for reply in replies],
            )
            for plan in self._plans
        ]
        weights = torch.tensor(np.stack(by_budget, 1)).float()[:, self._budget_of]
        updates = _stack([reply.update for reply in replies])
        weights *= self._layout.finite(updates)
        weights /= weights.sum(0).clamp(min=1e-30)
        mean = {}
        for name, value in updates.items():
            share = self._layout.spread(weights, value)
            mean[name] = (torch.where(share > 0, value, 0) * share).sum(0)
        return mean


class _GridEngine(StackedEngine):
    """The stacked engine with a cell dimension; each cell has its own bound and noise."""

    def __init__(
        self,
        local_model: LocalModel,
        layout: Layout,
        *,
        plans: Sequence[Sequence[Plan]],
        budget_of: Sequence[int],
        bounds: FloatArray,
    ) -> None:
        super().__init__(local_model, layout=layout)
        self._clients_per_seed = len(plans[0][0].clients)
        shape = (len(plans), self._clients_per_seed, plans[0][0].rounds, len(budget_of))
        self._cell_bounds = np.broadcast_to(bounds, shape)
        self._multipliers = [
            np.array([p.clients[client].charges[0].noise_multiplier for p in by_budget])[budget_of]
            for by_budget in plans
            for client in range(self._clients_per_seed)
        ]
        # Divisors and the bounds of budget levels depend on the budget, which caps the levels.
        self._cell_divisors = [
            np.array([p.clients[client].divisor for p in by_budget])[budget_of]
            for by_budget in plans
            for client in range(self._clients_per_seed)
        ]
        self._cell_ratios = [
            np.array([level_ratios(p.clients[client]) for p in by_budget])[budget_of]
            for by_budget in plans
            for client in range(self._clients_per_seed)
        ]
        self._cached: dict[tuple[int, ...], Padded] = {}
        self._free = LARGEST_CACHE

    def _load(self, broadcast: Broadcast) -> None:
        # The models come from this process and need no check.
        pass

    def _initial_weights(self, jobs: Sequence[Job], broadcast: Broadcast) -> Tensors:
        seeds = torch.tensor([job.id // self._clients_per_seed for job in jobs])
        return {name: value[seeds] for name, value in broadcast.model.items()}

    def _bounds(self, job: Job, round: int) -> FloatArray:  # noqa: A002
        return np.asarray(self._cell_bounds[(*divmod(job.id, self._clients_per_seed), round)])

    def _noise_multipliers(self, job: Job) -> FloatArray:
        return self._multipliers[job.id]

    def _divisors(self, job: Job) -> FloatArray:
        return self._cell_divisors[job.id]

    def _ratios(self, job: Job) -> FloatArray:
        return self._cell_ratios[job.id]

    def _upload_steps(self, job: Job, broadcast: Broadcast) -> FloatArray | None:
        training = job.client.plan.training
        gains = update_gains(training.optimiser, job.client_plan.steps)
        if training.upload == "exact" or gains is None:
            return None
        noise = self._noise_multipliers(job) * job.noise_scale * self._bounds(job, broadcast.round)
        return coarse_steps(math.hypot(*gains) * noise / self._divisors(job))

    def _padded(self, jobs: Sequence[Job]) -> Padded:
        """Return the padded records of the jobs, cached because most groups recur every round."""
        key = tuple(job.id for job in jobs)
        if key in self._cached:
            return self._cached[key]
        padded = super()._padded(jobs)
        self._free -= padded.inputs.numel()
        if self._free > 0:
            self._cached[key] = padded
        return padded

    def _size(self, job: Job) -> int:
        # With many cells, outputs take most of the memory instead of records. An output counts as
        # a quarter of a record value: a group may hold up to 4 * LARGEST_STACK outputs.
        outputs = next(iter(self._local_model.parameters.values())).shape[0]
        return math.ceil(job.client_plan.divisor) * self._layout.cells * outputs // 4

    def _as_update(self, update: Tensors) -> Tensors:
        return update


def _layout_for(local_model: LocalModel, cells: int) -> Layout:
    """Choose the layout for the model and its loss."""
    layers = [
        layer for layer in local_model.model.modules() if list(layer.parameters(recurse=False))
    ]
    single = len(layers) == 1 and type(layers[0]) is nn.Linear
    known = isinstance(local_model.loss, CrossEntropy | SquaredError)
    return CellsLast(local_model, cells) if single and known else CellsFirst(local_model, cells)


def _stack(states: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}
