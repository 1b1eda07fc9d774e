"""A first model from public data.

It costs nothing, and it carries much of the accuracy: so the accuracy before any private record is
read is always printed beside the result.
"""

import numpy as np
import torch

from pacdp.data import Dataset
from pacdp.errors import InputError
from pacdp.federation.configuration import HotStart
from pacdp.federation.local_model import Tensors, Workbench
from pacdp.federation.metrics import evaluate


def hot_start(bench: Workbench, proxy: Dataset, settings: HotStart, *, seed: int) -> Tensors:
    """Train the workbench's model on the proxy without privacy, and return its parameters."""
    plan = bench.plan
    if proxy.shape != plan.shape or len(proxy.classes) != plan.classes:
        raise InputError(
            f"proxy {proxy.name}: has records {proxy.shape} of {len(proxy.classes)} classes, must "
            f"have {plan.shape} of {plan.classes}"
        )
    inputs, targets = proxy.train.tensors(bench.device)
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
    return evaluate(bench.model, test.test, classes=bench.plan.classes, device=bench.device)
