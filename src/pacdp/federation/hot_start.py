"""A first model from public data.

It costs nothing, and it carries much of the accuracy: so the accuracy before any private record is
read is always printed beside the result.
"""

import numpy as np
import torch

from pacdp.data import Dataset
from pacdp.errors import InputError
from pacdp.federation.configuration import HotStart
from pacdp.federation.evaluation import evaluate
from pacdp.federation.local_model import Tensors, Workbench


def hot_start(bench: Workbench, proxy: Dataset, settings: HotStart, *, seed: int) -> Tensors:
    """Train the workbench's model on the proxy without privacy, and return its parameters."""
    plan = bench.plan
    if (proxy.shape, proxy.task) != (plan.shape, plan.task):
        raise InputError(
            f"proxy {proxy.name}: has records {proxy.shape} for {proxy.task}, must have "
            f"{plan.shape} for {plan.task}"
        )
    inputs, targets = proxy.train.tensors(plan.task, bench.device)
    optimiser = torch.optim.Adam(bench.parameters.values(), lr=settings.lr)
    random = np.random.default_rng([seed, settings.epochs])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(settings.epochs):
            order = torch.from_numpy(random.permutation(len(inputs)))
            for batch in order.split(settings.batch):
                optimiser.zero_grad()
                bench.loss(bench.model(inputs[batch]), targets[batch]).mean().backward()
                optimiser.step()
        optimiser.zero_grad()
    return bench.state()


def before_any_private_record(bench: Workbench, model: Tensors, test: Dataset) -> dict[str, float]:
    """How good a first model is on the test records of the task."""
    bench.load(model)
    return evaluate(bench.model, test.test, bench.plan.task, device=bench.device)
