"""Clipping bounds by budget level: equal to one example at a time, and never exceeded."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad

from pacdp.clipping import (
    ClippedGradient,
    CrossEntropy,
    SimulatedNoise,
    StackedGradient,
    StackedLevels,
    release,
)
from pacdp.clipping.examples import ExampleLevels
from pacdp.clipping.numerics import (
    BLOCK,
    GRID_ERROR,
    NORM_ERROR,
    SUM_ERROR,
    grid_step,
    quantize_,
    shrink_bound,
    shrink_levels,
    sum_error,
)
from pacdp.errors import InputError
from pacdp.privacy import LevelTerms

RATIOS = (0.2, 0.5, 1.0)


class Opaque(nn.Module):
    """Hides a sequential model, so that it is not trained in closed form."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def models():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    cnn = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    return {
        "linear": (nn.Linear(6, 3), (6,)),
        "mlp": (mlp, (6,)),
        "cnn": (cnn, (1, 6, 6)),
        "hidden mlp": (Opaque(mlp), (6,)),
        "hidden cnn": (Opaque(cnn), (1, 6, 6)),
    }


def single_gradients(model, inputs, targets):
    """Compute each example's gradient by itself, with autograd."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values, x, y):
        return CrossEntropy()(functional_call(model, values, (x[None],)), y[None]).sum()

    return [grad(loss)(parameters, x, y) for x, y in zip(inputs, targets, strict=True)]


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_clipping_by_level_equals_one_example_at_a_time(name, adjacency):
    model, shape = models()[name]
    inputs, targets = torch.randn(12, *shape), torch.randint(0, 3, (12,))
    levels = ExampleLevels(RATIOS, torch.arange(12) % 3)
    gradient = ClippedGradient(model, CrossEntropy(), adjacency=adjacency)
    total = gradient(inputs, targets, clipping_bound=0.3, levels=levels)
    expected = {name: torch.zeros_like(value) for name, value in total.values.items()}
    for level, single in zip(levels.index, single_gradients(model, inputs, targets), strict=True):
        norm = math.sqrt(sum(float(part.square().sum()) for part in single.values()))
        factor = min(1.0, 0.3 * RATIOS[level] / norm)
        for parameter, part in single.items():
            expected[parameter] += factor * part
    for parameter, value in total.values.items():
        # Rounding errors are part of the bound, which therefore is a little smaller.
        torch.testing.assert_close(value.float(), expected[parameter], rtol=0.03, atol=2e-3)
    assert total.levels == RATIOS
    assert total.event(1.0).levels == tuple(LevelTerms(ratio) for ratio in RATIOS)


def test_units_are_clipped_by_their_own_level():
    model = nn.Linear(4, 3)
    inputs, targets = torch.randn(6, 4), torch.randint(0, 3, (6,))
    units = torch.tensor([7, 3, 7, 3, 9, 9])
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out", unit="patient")
    levels = ExampleLevels((0.1, 1.0), torch.tensor([0, 1, 0]))  # units 3, 7 and 9
    total = gradient(inputs, targets, clipping_bound=0.2, units=units, levels=levels)
    expected = torch.zeros(3, 4)
    for unit, ratio in ((3, 0.1), (7, 1.0), (9, 0.1)):
        of_unit = [
            single
            for single, owner in zip(single_gradients(model, inputs, targets), units, strict=True)
            if owner == unit
        ]
        parts = {name: sum(s[name] for s in of_unit) for name in ("weight", "bias")}
        norm = math.sqrt(sum(float(part.square().sum()) for part in parts.values()))
        expected += min(1.0, 0.2 * ratio / norm) * parts["weight"]
    torch.testing.assert_close(total.values["weight"].float(), expected, rtol=0.02, atol=1e-4)


def test_a_stack_of_models_equals_each_of_them():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    stacked = StackedGradient(model, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(3, 7, 4), torch.randint(0, 2, (3, 7))
    ratios = np.array([[0.1, 1.0], [1.0, 1.0], [0.0, 1.0]])
    index, bounds = torch.randint(0, 2, (3, 7)), [0.05, 0.1, 0.2]
    sums = stacked(
        stacked.parameters(models=3),
        inputs,
        targets,
        clipping_bounds=bounds,
        levels=StackedLevels(ratios, index),
    )
    alone = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    for number in range(3):
        expected = alone(
            inputs[number],
            targets[number],
            clipping_bound=bounds[number],
            levels=ExampleLevels(tuple(ratios[number]), index[number]),
        )
        assert sums[number].levels == expected.levels
        assert sums[number].smallest_sensitivity == expected.smallest_sensitivity
        for name, value in expected.values.items():
            torch.testing.assert_close(sums[number].values[name], value, rtol=1e-4, atol=1e-7)


@given(
    ratios=st.lists(st.floats(0.02, 1), min_size=1, max_size=4),
    examples=st.integers(1, 1000),
    positions=st.booleans(),
)
def test_errors_leave_each_level_within_its_own_bound(ratios, examples, positions):
    ratios = np.array([*ratios, 1.0])
    limits = shrink_levels(np.array(1.0), ratios, examples, positions=positions)
    block = min(examples, BLOCK)
    rounding = SUM_ERROR if positions else 2 * block * sum_error(block) * (1 + NORM_ERROR)
    grid = GRID_ERROR * ratios.min()
    moved = limits * (1 + NORM_ERROR) + rounding * limits.max() + grid
    assert (moved <= ratios * (1 + 1e-12)).all()
    if (ratios == 1).all():
        assert (limits == shrink_bound(1.0, examples)).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(0, 8),
    smallest=st.sampled_from([0.01, 0.03, 0.3]),
    n=st.sampled_from([2, 31, 128, 300]),
    huge=st.booleans(),
)
def test_no_record_moves_a_sum_by_more_than_its_level_allows(seed, size, smallest, n, huge):
    """The records of the largest level are as long as they can be, and so is their rounding."""
    random = torch.Generator().manual_seed(seed)
    model = nn.Linear(size + 3, 2)
    inputs = torch.randn(n, size + 3, generator=random) * (1e18 if huge else 10.0)
    targets = torch.randint(0, 2, (n,), generator=random)
    index = torch.ones(n, dtype=torch.int64)
    index[0] = 0
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    levels = ExampleLevels((smallest, 1.0), index)
    sums = []
    for there in (True, False):
        present = torch.ones(n, dtype=torch.bool)
        present[0] = there
        total = gradient(inputs, targets, clipping_bound=1.0, levels=levels, present=present)
        step = grid_step(total.smallest_sensitivity, 2 * (size + 4))
        sums.append([quantize_(value.clone(), step) * step for value in total.values.values()])
    moved = sum(float((a - b).double().square().sum()) for a, b in zip(*sums, strict=True))
    assert math.sqrt(moved) <= smallest


def test_the_grid_is_made_for_the_smallest_level():
    model = nn.Linear(3, 2)
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    levels = ExampleLevels((0.01, 0.0, 1.0), torch.tensor([0, 1, 2, 0, 2]))
    total = gradient(inputs, targets, clipping_bound=1.0, levels=levels)
    assert total.smallest_sensitivity == 0.01
    noise = SimulatedNoise(seed=0, client=0, round=0)
    released = release(total, z=1.0, divisor=1.0, noise=noise)
    step = grid_step(0.01, 8)
    for value in released.values():
        assert torch.equal(value / step, (value / step).round())


def test_records_of_a_level_that_is_left_out_do_not_count():
    model = nn.Linear(3, 2)
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    levels = ExampleLevels((0.0, 1.0), torch.tensor([0, 1, 1, 0, 1]))
    total = gradient(inputs, targets, clipping_bound=1.0, levels=levels)
    inputs[0] = 1e30
    inputs[3] = float("nan")
    again = gradient(inputs, targets, clipping_bound=1.0, levels=levels)
    for name, value in total.values.items():
        assert torch.equal(value, again.values[name])


@pytest.mark.parametrize(
    ("ratios", "index", "message"),
    [
        ((0.1, 1.0), torch.tensor([0, 1, 2]), "from 0 to 1, one for each example"),
        ((0.1, 1.0), torch.tensor([0, -1, 1]), "from 0 to 1, one for each example"),
        ((0.1, 1.0), torch.tensor([0, 1]), "are 2, must be one for each example"),
        ((0.1, 1.0), torch.tensor([0.0, 1.0, 1.0]), "one for each example"),
        ((0.1, 2.0), torch.tensor([0, 1, 1]), "the largest must be 1"),
        ((0.1, 0.5), torch.tensor([0, 1, 1]), "the largest must be 1"),
    ],
)
def test_wrong_levels_are_refused(ratios, index, message):
    gradient = ClippedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(3, 3), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InputError, match=message):
        gradient(inputs, targets, clipping_bound=1.0, levels=ExampleLevels(tuple(ratios), index))


def test_a_recurrent_model_takes_levels():
    model = Recurrent()
    inputs, targets = torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.int64)
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    levels = ExampleLevels((0.05, 1.0), torch.tensor([0, 1, 0, 1]))
    total = gradient(inputs, targets, clipping_bound=0.1, levels=levels)
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in total.values.values()))
    assert 0 < norm <= 0.1 * (2 + 2 * 0.05)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.recurrent(x)[0][:, -1])
