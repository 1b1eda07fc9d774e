"""The clients of a round in one tensor program.

Clients that do the same steps on models of the same shape are one batch of small models. Each has
its own records, bound, noise and book; only the arithmetic is shared. For plain chains and for
methods that train by the loop that most share (:meth:`pacdp.methods.Method.train`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping import NoiseSource, StackedGradient, StackedGrid
from pacdp.clipping.sequential import LinearStep
from pacdp.errors import BudgetExceededError, located
from pacdp.federation.batches import Padded, PaddedBatches
from pacdp.federation.client import Client
from pacdp.federation.client_context import local_batches
from pacdp.federation.engines.threaded import on_threads
from pacdp.federation.local_model import Tensors, Workbench
from pacdp.federation.messages import Broadcast, Reply
from pacdp.federation.optimizers import Stepper
from pacdp.federation.plan import ClientPlan, Plan
from pacdp.methods import Method

# So many numbers of records are in one program at most: what a core keeps near.
LARGEST_STACK = 2**20
# At most this many numbers of noise are drawn at once for each client.
LARGEST_DRAW = 2**20


def cannot_stack(bench: Workbench) -> str:
    """Why the clients of a plan cannot be computed together; nothing if they can."""
    plan = bench.plan
    chain = bench.gradient.chain
    if type(plan.made_method).train is not Method.train:
        return f"{plan.method} trains in its own way; must be a method with the common loop"
    if plan.unit != "record":
        return f"one {plan.unit} at a time is clipped; must be one record"
    if chain is None or not chain.fits(len(plan.shape)):
        return (
            "the model cannot be stacked; must be a Sequential of Linear, Conv2d, ReLU, Tanh, "
            "MaxPool2d and Flatten"
        )
    if not all(_covered(plan, task) for task in plan.clients):
        return f"what {plan.method} is charged for is not one clipped sum in each pass"
    return ""


def _covered(plan: Plan, task: ClientPlan) -> bool:
    """Whether the common loop releases no more than a participation pays for."""
    if len(task.charges) != 1:
        return False
    (charge,) = task.charges
    plain = charge.sampling_rate == 1 and charge.sensitivity == plan.adjacency.sensitivity
    return plain and charge.each >= task.passes


def worth_stacking(bench: Workbench) -> bool:
    """Whether it is faster so: products of matrices are, convolutions of many models are not."""
    chain = bench.gradient.chain
    return chain is not None and all(
        isinstance(step, LinearStep) or not hasattr(step, "weight") for step in chain.steps
    )


@dataclass(frozen=True)
class _Paid:
    """A client that has paid, and the scale of its noise."""

    client: Client
    scale: float


class Stack:
    """Computes a round's clients together."""

    name = "stacked"

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._plan = bench.plan
        self._gradient = StackedGradient(bench.model, bench.loss, adjacency=bench.plan.adjacency)

    @property
    def _heavy(self) -> bool:
        """Whether a step is mostly arithmetic; of the rest Python does one thing at a time."""
        batch = max(task.divisor for task in self._plan.clients)
        return batch * sum(value.numel() for value in self._bench.parameters.values()) > 2**20

    def round(
        self, clients: Sequence[Client], broadcast: Broadcast
    ) -> dict[int, Reply | BudgetExceededError]:
        """Each client's answer, in the order they were given."""
        self._bench.load(broadcast.model)
        found: dict[int, Reply | BudgetExceededError] = {}
        paid: list[_Paid] = []
        for client in clients:
            try:
                paid.append(_Paid(client, client.accept(broadcast)))
            except BudgetExceededError as error:
                found[client.number] = error
        trained = on_threads(
            lambda group: self._train(group, broadcast),
            list(_groups(paid)),
            most=None if self._heavy else 1,
        )
        found |= {reply.client: reply for replies in trained for reply in replies}
        return {client.number: found[client.number] for client in clients}

    def _train(self, group: Sequence[_Paid], broadcast: Broadcast) -> list[Reply]:
        """The common loop, for all of a group at once. The clients with most steps come first."""
        plan, number = self._plan, broadcast.round
        tasks = [paid.client.task for paid in group]
        method = plan.made_method
        bounds = [method.bound(t.epsilon, round=number, rounds=plan.rounds) for t in tasks]
        zs = np.array([t.charges[0].z * p.scale for t, p in zip(tasks, group, strict=True)])
        divisors = np.array([task.divisor for task in tasks])
        sensitivities = np.array(bounds) * plan.adjacency.sensitivity
        coordinates = self._bench.coordinates
        grid = StackedGrid(sensitivities, coordinates, z=zs)
        noise = [
            _Draws(paid.client.noise_source(number), scale, task.steps, coordinates)
            for paid, task, scale in zip(group, tasks, grid.scales, strict=True)
        ]
        parameters = self._gradient.parameters(models=len(group))
        move = Stepper.of_client(plan.training.optimiser, parameters)
        batches = PaddedBatches(
            Padded([paid.client.records.tensors(plan.task, self._bench.device) for paid in group]),
            [local_batches(plan, paid.client.number, number) for paid in group],
        )
        ended: list[Tensors] = []
        for step in range(tasks[0].steps):
            active = sum(task.steps > step for task in tasks)
            inputs, targets, present = batches.next(active)
            try:
                sums = self._gradient(
                    {name: value[:active] for name, value in parameters.items()},
                    *(inputs, targets),
                    clipping_bounds=bounds[:active],
                    present=present,
                )
                drawn = torch.stack([draws.next() for draws in noise[:active]])
                released = grid.release(sums, drawn, divisors=divisors)
            except Exception as error:
                raise located(error, _where(group[:active], number, step)) from error
            if active < len(group):
                # Those that are done stand still, or would if an optimiser had no memory.
                released = {
                    name: torch.cat([value, torch.zeros_like(parameters[name][active:])])
                    for name, value in released.items()
                }
            move(released)
            done = sum(task.steps > step + 1 for task in tasks)
            ended += [
                {
                    name: value[m] - broadcast.model[name].to(value)
                    for name, value in parameters.items()
                }
                for m in range(active - 1, done - 1, -1)
            ]
        return [
            Reply(paid.client.number, number, update, noise_scale=paid.scale)
            for paid, update in zip(reversed(group), ended, strict=True)
        ]


class _Draws:
    """A client's noise, handed out step by step but drawn for many steps at once."""

    def __init__(self, source: NoiseSource, scale: float, steps: int, coordinates: int) -> None:
        self._source, self._scale = source, scale
        self._steps, self._coordinates = steps, coordinates
        self._rows: Iterator[Tensor] = iter(())

    def next(self) -> Tensor:
        """The noise of the next step."""
        row = next(self._rows, None)
        if row is None:
            count = min(self._steps, max(1, LARGEST_DRAW // self._coordinates))
            self._steps -= count
            drawn = self._source.integers(count * self._coordinates, self._scale)
            self._rows = iter(drawn.view(count, -1))
            row = next(self._rows)
        return row


def _groups(paid: Sequence[_Paid]) -> Iterator[list[_Paid]]:
    """Clients with batches of similar size together, the largest first, within a limit."""
    group: list[_Paid] = []
    # More records are never fewer steps.
    for one in sorted(paid, key=lambda p: p.client.task.records, reverse=True):
        if group:
            largest = group[0].client.task
            width = int(np.prod(one.client.plan.shape))
            full = (len(group) + 1) * largest.records * width > LARGEST_STACK
            # Padding costs what a batch is short of the longest one.
            if full or 2 * one.client.task.divisor < largest.divisor:
                yield group
                group = []
        group.append(one)
    if group:
        yield group


def _where(group: Sequence[_Paid], round: int, step: int) -> str:  # noqa: A002
    names = ", ".join(paid.client.task.name for paid in group[:3])
    more = f" and {len(group) - 3} more" if len(group) > 3 else ""
    return (
        f"clients {names}{more}, round {round + 1}, step {step + 1} "
        "(the engine one-by-one says which client)"
    )
