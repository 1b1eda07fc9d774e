"""Row 2: the offline grid on Heart, against the same trainings as a loop over Opacus."""

import copy
import time
import warnings
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.harness import Row, interleaved, versions
from pacdp.data import load_dataset, load_proxy, partition_records
from pacdp.federation import LocalModel, Optimiser, Recipe, Training
from pacdp.federation.client_context import local_batches
from pacdp.offline import Grid, ProxyTask
from pacdp.offline.grid import run_grid

GRID = Grid(
    tuple(np.geomspace(0.01, 10, 10).tolist()),
    tuple(np.geomspace(0.01, 10, 12).tolist()),
    (0, 1, 2, 3, 4),
)
RATE = 0.1


def rows() -> Iterator[Row]:
    """All trainings of the grid, and one of them by the peer, in turns."""
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    proxy_task = ProxyTask(
        proxy=load_proxy("heart"),
        sizes=partition_records(load_dataset("heart"), "natural").sizes_by_client,
        recipe=Recipe(
            training=Training(rounds=20, local_epochs=5, batch=16, optimiser=Optimiser(lr=RATE))
        ),
    )
    run_grid(proxy_task, Grid((1.0,), (1.0,), GRID.seeds))  # deal out the records once
    ours, peer = interleaved(
        lambda: run_grid(proxy_task, GRID), lambda: by_opacus(proxy_task, 1.0, 1.0, 0), repeats=7
    )
    trainings = len(GRID.cells)
    yield Row(
        row=2,
        work=f"offline grid, Heart logistic: {trainings} trainings of 4 clients, 20 rounds, "
        "5 epochs, B = 16",
        against="the same trainings as a loop over Opacus (one run, the rest scaled)",
        ratio=trainings * peer / ours,
        goal=">= 1,000x faster",
        holds=trainings * peer / ours >= 1000,
        versions=versions("pacdp", "torch", "opacus", "numpy"),
        details={
            "seconds_all": ours,
            "seconds_peer_one": peer,
            "threads": float(torch.get_num_threads()),
        },
    )


def by_opacus(proxy_task: ProxyTask, epsilon: float, bound: float, seed: int) -> float:
    """One training of the grid by Opacus: the same records, batches, steps and noise levels."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    started = time.perf_counter()
    before = torch.get_num_threads()
    # Small steps are faster so.
    torch.set_num_threads(1)
    plan = proxy_task.plan(epsilon, bound, seed)
    data, split = proxy_task.records(seed)
    records = [own.tensors(data.task) for own in split.client_records(data)]
    model = LocalModel(plan).model
    wrapped = GradSampleModule(copy.deepcopy(model))
    inner = dict(wrapped._module.named_parameters())
    optimizers = [
        DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=RATE),
            noise_multiplier=task.noise_multiplier or 0.0,
            max_grad_norm=bound,
            expected_batch_size=int(task.divisor),
        )
        for task in plan.clients
    ]
    for number in range(plan.rounds):
        start = {name: value.detach().clone() for name, value in model.named_parameters()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in plan.participants(number):
            with torch.no_grad():
                for name, value in inner.items():
                    value.copy_(start[name])
            inputs, targets = records[client]
            optimizer = optimizers[client]
            for chosen in local_batches(plan, client, number):
                assert chosen is not None
                batch = torch.from_numpy(chosen)
                optimizer.zero_grad()
                F.cross_entropy(wrapped(inputs[batch]), targets[batch]).backward()
                optimizer.step()
            for name, value in inner.items():
                total[name] += value.detach() * plan.clients[client].records
        everyone = sum(task.records for task in plan.clients)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(total[name] / everyone)
    torch.set_num_threads(before)
    return time.perf_counter() - started
