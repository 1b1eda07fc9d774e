"""What budgets of single records cost in time: a step with levels against one without.

A step clips, sums and releases a batch, in one client and in a stack of four.

    python -m benchmarks.levels
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Row, interleaved, versions
from pacdp.clipping import (
    ClippedGradient,
    CrossEntropy,
    SimulatedNoise,
    StackedGradient,
    StackedGrid,
    StackedLevels,
    release,
)
from pacdp.clipping.examples import ExampleLevels
from pacdp.clipping.numerics import smallest_ratio

RATIOS = (0.03, 0.24, 1.0)
CLIENTS = 4
CNN = nn.Sequential(
    *(nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1)),
    *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
    *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
)
MODELS = {
    "logistic 13-2, batch 16": (nn.Linear(13, 2), (16, 13), 4000),
    "MLP 13-16-2, batch 16": (
        nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 2)),
        (16, 13),
        4000,
    ),
    "MLP 784-100-10, batch 64": (
        nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
        (64, 784),
        1000,
    ),
    "CNN, batch 64": (CNN, (64, 1, 28, 28), 60),
}


def rows() -> Iterator[Row]:
    """Measure each model, alone and stacked."""
    torch.manual_seed(0)
    for name, (model, shape, repeats) in MODELS.items():
        steps = {"": single_step(model, shape)}
        if model is not CNN:
            steps[", stacked"] = stack_step(model, shape)
        for kind, step in steps.items():
            for levels in (False, True):
                step(levels)
            plain, own = interleaved(partial(step, False), partial(step, True), repeats=repeats)
            yield Row(
                row=1,
                work=f"a step with budget levels, {name}{kind}",
                against="a step without",
                ratio=own / plain,
                goal="at most 1.03",
                holds=own / plain <= 1.03,
                versions=versions("torch"),
                details={"microseconds": 1e6 * own},
            )


def single_step(model: nn.Module, shape: tuple[int, ...]) -> Callable[[bool], object]:
    """Return a step of one client."""
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(shape), torch.randint(0, 2, shape[:1])
    own = ExampleLevels(RATIOS, torch.randint(0, 3, shape[:1]))

    def step(levels: bool) -> object:
        total = gradient(inputs, targets, clipping_bound=1.0, levels=own if levels else None)
        noise = SimulatedNoise(seed=0, client=0, round=0)
        return release(total, z=3.0, divisor=float(shape[0]), noise=noise)

    return step


def stack_step(model: nn.Module, shape: tuple[int, ...]) -> Callable[[bool], object]:
    """Return a step of several clients together."""
    gradient = StackedGradient(model, CrossEntropy(), adjacency="zero-out")
    parameters = gradient.parameters(models=CLIENTS)
    size = (CLIENTS, *shape)
    inputs, targets = torch.randn(size), torch.randint(0, 2, size[:2])
    ratios = np.tile(RATIOS, (CLIENTS, 1))
    own = StackedLevels(ratios, torch.randint(0, 3, size[:2]))
    coordinates = sum(value[0].numel() for value in parameters.values())
    bounds, z = np.ones(CLIENTS), np.full(CLIENTS, 3.0)
    divisors = np.full(CLIENTS, float(shape[0]))
    grids = [
        StackedGrid(
            bounds,
            coordinates,
            z=z,
            divisors=divisors,
            smallest_sensitivities=smallest_sensitivities,
        )
        for smallest_sensitivities in (None, bounds * smallest_ratio(ratios))
    ]

    def step(levels: bool) -> object:
        sums = gradient(
            parameters, inputs, targets, clipping_bounds=bounds, levels=own if levels else None
        )
        grid = grids[levels]
        sources = [SimulatedNoise(seed=0, client=c, round=0) for c in range(CLIENTS)]
        noise = torch.stack(
            [s.integers(coordinates, x) for s, x in zip(sources, grid.scales.tolist(), strict=True)]
        )
        flat = torch.cat([value.flatten(1) for value in sums.values.values()], 1)
        return grid.add_noise(flat, noise, sums=sums)

    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in rows():
        print(f"{row.work}: {row.ratio:.3f}x against {row.against} ({row.details})")
