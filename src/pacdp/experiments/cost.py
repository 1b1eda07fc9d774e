"""The cost of a plan, before anything is trained."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from pacdp.federation import LocalModel, Plan
from pacdp.federation.results import signal_to_noise
from pacdp.federation.uploads import planned_size
from pacdp.models import count_parameters

BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class Cost:
    """Size, traffic, work and noise of a plan."""

    parameters: int
    bytes_per_round: int
    """Up and down: the updates and the models of a round's clients."""
    steps: int
    """Local steps of all clients over the whole training."""
    seconds: float
    """An estimate: the time of one step, times the number of steps."""
    signal_to_noise: list[float | None]
    """For each client, the best case of a release."""


def estimate_cost(plan: Plan) -> Cost:
    """Estimate the cost of a plan. A single step is timed, on zeros.

    >>> from pacdp.federation import Population, Recipe, Training, make_plan
    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> plan = make_plan(
    ...     Recipe(training=Training(rounds=5, local_steps=2)), build_method("fixed"),
    ...     Population(sizes={"a": 100}, shape=(13,), task=Classification(2)),
    ... )
    >>> cost = estimate_cost(plan)
    >>> cost.steps, cost.bytes_per_round
    (10, 224)
    """
    local_model = LocalModel(plan)
    size = count_parameters(local_model.model)
    asked = [task.steps * plan.rounds * plan.per_round / len(plan.clients) for task in plan.clients]
    steps = round(sum(asked))
    return Cost(
        parameters=size,
        bytes_per_round=bytes_per_round(plan, size),
        steps=steps,
        seconds=steps * _time_step(local_model),
        signal_to_noise=[signal_to_noise(client, size) for client in plan.clients],
    )


def bytes_per_round(plan: Plan, parameters: int) -> int:
    """Count the bytes that all clients of a round send and receive, as in the first round."""
    sent = np.mean([planned_size(plan, client, parameters) for client in range(len(plan.clients))])
    return round(plan.per_round * (float(sent) + parameters * BYTES_PER_NUMBER))


def _time_step(local_model: LocalModel) -> float:
    """Time one clipped step of a client of median size, in seconds."""
    plan = local_model.plan
    records = round(float(np.median([task.records / task.batches for task in plan.clients])))
    tokens = plan.model.name == "sequence"
    shape = (max(records, 1), *plan.shape)
    inputs = torch.zeros(shape, dtype=torch.long) if tokens else torch.zeros(shape)
    targets = plan.task.synthetic_targets(len(inputs))
    units = None if plan.unit == "record" else torch.arange(len(inputs))
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        local_model.gradient(inputs, targets, clipping_bound=1.0, units=units)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
