"""A warm start: a first model that was trained on public data.

It costs no privacy and accounts for much of the accuracy, so the accuracy before any private record
is read is always reported beside the result.
"""

import numpy as np
import torch

from pacdp.data import Dataset
from pacdp.errors import InputError
from pacdp.federation.configuration import WarmStart
from pacdp.federation.evaluation import evaluate
from pacdp.federation.local_model import LocalModel, Tensors


def train_warm_start(
    local_model: LocalModel, proxy: Dataset, settings: WarmStart, *, seed: int
) -> Tensors:
    """Train the local model on the proxy without privacy, and return its parameters."""
    plan = local_model.plan
    if (proxy.shape, proxy.task) != (plan.shape, plan.task):
        raise InputError(
            f"proxy {proxy.name}: has records {proxy.shape} for {proxy.task}, must have "
            f"{plan.shape} for {plan.task}"
        )
    inputs, targets = proxy.train.tensors(plan.task, local_model.device)
    optimiser = torch.optim.Adam(local_model.parameters.values(), lr=settings.lr)
    random = np.random.default_rng([seed, settings.epochs])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(settings.epochs):
            order = torch.from_numpy(random.permutation(len(inputs)))
            for batch in order.split(settings.batch):
                optimiser.zero_grad()
                local_model.loss(local_model.model(inputs[batch]), targets[batch]).mean().backward()
                optimiser.step()
        optimiser.zero_grad()
    return local_model.state()


def evaluate_initial_model(
    local_model: LocalModel, model: Tensors, test: Dataset
) -> dict[str, float]:
    """Evaluate a first model on the test records of the task."""
    local_model.load(model)
    return evaluate(local_model.model, test.test, local_model.plan.task, device=local_model.device)
