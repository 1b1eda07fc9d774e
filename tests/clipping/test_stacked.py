"""Many models at once against the same models one by one."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from pacdp.clipping import (
    BinaryCrossEntropy,
    ClippedGradient,
    CrossEntropy,
    SimulatedNoise,
    SquaredError,
    StackedGradient,
    StackedGrid,
    StackedSum,
    release,
)
from pacdp.errors import InputError
from pacdp.privacy import Adjacency

from .models import cnn

MODELS = 4
BOUNDS = [0.01, 0.3, 1.0, 50.0]


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))


def strided():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 5, (2, 1), bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3)),
    )


CASES = {
    "logistic": (lambda: nn.Linear(5, 3), (5,), CrossEntropy()),
    "binary": (lambda: nn.Linear(5, 1), (5,), BinaryCrossEntropy()),
    "regression": (lambda: nn.Linear(5, 1, bias=False), (5,), SquaredError()),
    "mlp": (mlp, (5,), CrossEntropy()),
    "mlp, any loss": (mlp, (5,), lambda out, y: CrossEntropy()(out, y)),
    "cnn": (cnn, (1, 28, 28), CrossEntropy()),
    "strided cnn": (strided, (2, 14, 14), CrossEntropy()),
}


def setting(name):
    torch.manual_seed(0)
    make, shape, loss = CASES[name]
    module = make()
    stacked = StackedGradient(module, loss, adjacency="zero-out")
    parameters = {
        n: p + 0.1 * torch.randn_like(p) for n, p in stacked.parameters(models=MODELS).items()
    }
    inputs = torch.randn(MODELS, 6, *shape)
    if isinstance(loss, SquaredError):
        targets = torch.randn(MODELS, 6, 1)
    else:
        targets = torch.randint(0, 2, (MODELS, 6))
    return module, stacked, parameters, inputs, targets, loss


def one_by_one(module, parameters, model):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters[name][model])
    return module


class Hidden(nn.Module):
    """Hides a sequential model, so that the engine chooses another strategy."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_stack_equals_its_models(name, hidden):
    module, stacked, parameters, inputs, targets, loss = setting(name)
    sums = stacked(parameters, inputs, targets, clipping_bounds=BOUNDS)
    for model in range(MODELS):
        alone = one_by_one(module, parameters, model)
        engine = ClippedGradient(Hidden(alone) if hidden else alone, loss, adjacency="zero-out")
        expected = engine(inputs[model], targets[model], clipping_bound=BOUNDS[model])
        own = sums[model]
        assert own.sensitivity == pytest.approx(BOUNDS[model])
        for parameter, value in own.values.items():
            other = expected.values[f"module.{parameter}" if hidden else parameter]
            torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5 * BOUNDS[model])


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_module(name):
    module, stacked, parameters, inputs, _, _ = setting(name)
    outputs = stacked.outputs(parameters, inputs)
    for model in range(MODELS):
        own = {n: p[model] for n, p in parameters.items()}
        expected = functional_call(module, own, (inputs[model],))
        torch.testing.assert_close(outputs[model], expected, rtol=1e-4, atol=1e-5)


def test_a_step_of_the_stack_equals_steps_one_by_one_noise_included():
    module, stacked, parameters, inputs, targets, loss = setting("mlp")
    z, divisors = np.array([1.0, 2.0, 3.0, 0.5]), np.array([6.0, 7.0, 8.0, 9.0])

    def noise(model):
        return SimulatedNoise(seed=3, client=model, round=1)

    sums = stacked(parameters, inputs, targets, clipping_bounds=BOUNDS)
    coordinates = sum(value[0].numel() for value in sums.values.values())
    grid = StackedGrid(np.array(BOUNDS), coordinates, z=z, divisors=divisors)
    draws = [noise(model).integers(coordinates, grid.scales[model]) for model in range(MODELS)]
    flat = torch.cat([value.flatten(1) for value in sums.values.values()], 1)
    noised = grid.add_noise(flat, torch.stack(draws), sums=sums)
    sizes = [value[0].numel() for value in sums.values.values()]
    released = dict(zip(sums.values, noised.split(sizes, 1), strict=True))
    for model in range(MODELS):
        alone = one_by_one(module, parameters, model)
        value = ClippedGradient(alone, loss, adjacency="zero-out")(
            inputs[model], targets[model], clipping_bound=BOUNDS[model]
        )
        expected = release(value, z=z[model], divisor=divisors[model], noise=noise(model))
        for name, tensor in expected.items():
            torch.testing.assert_close(
                released[name][model].view_as(tensor), tensor, rtol=1e-4, atol=1e-5
            )


def test_padding_does_not_count():
    _, stacked, parameters, inputs, targets, _ = setting("mlp")
    present = torch.ones(MODELS, 6, dtype=torch.bool)
    present[1, 4:] = False
    present[2] = False
    inputs[1, 4:] = 1e3
    sums = stacked(parameters, inputs, targets, clipping_bounds=1.0, present=present)
    fewer = stacked(parameters, inputs[:, :4], targets[:, :4], clipping_bounds=1.0)
    for name, value in sums.values.items():
        torch.testing.assert_close(value[1], fewer.values[name][1])
        assert not value[2].any()


def test_examples_that_are_not_finite_spoil_no_neighbour():
    _, stacked, parameters, inputs, targets, _ = setting("mlp")
    clean = stacked(parameters, inputs, targets, clipping_bounds=BOUNDS)
    rest = stacked(parameters, inputs[:, 1:], targets[:, 1:], clipping_bounds=BOUNDS)
    inputs[1, 0] = float("nan")
    parameters["0.weight"][3] = float("inf")
    sums = stacked(parameters, inputs, targets, clipping_bounds=BOUNDS)
    for name, value in sums.values.items():
        torch.testing.assert_close(value[0], clean.values[name][0])
        torch.testing.assert_close(value[1], rest.values[name][1])
        assert not value[3].any()


@pytest.mark.parametrize(
    "module",
    [
        nn.GRU(3, 2),
        nn.Sequential(nn.Linear(3, 2), nn.Dropout()),
        nn.Sequential(nn.Conv2d(1, 2, 3, groups=1, dilation=2)),
        nn.Sequential(nn.ReLU()),
        nn.Linear(3, 2).double(),
    ],
)
def test_what_is_no_chain_cannot_be_stacked(module):
    with pytest.raises(InputError, match="cannot be stacked"):
        StackedGradient(module, CrossEntropy(), adjacency="zero-out")


def test_wrong_shapes_are_refused():
    _, stacked, parameters, inputs, targets, _ = setting("mlp")
    with pytest.raises(InputError, match="must be \\(models, examples"):
        stacked(parameters, inputs[0], targets[0], clipping_bounds=1.0)
    with pytest.raises(InputError, match=r"clipping_bounds: .* must be one or 4 numbers"):
        stacked(parameters, inputs, targets, clipping_bounds=[1.0, 2.0])


def test_noise_for_another_sensitivity_or_a_shared_draw_is_refused():
    clean, bounds = torch.zeros(3, 5), np.array([0.5, 1.0, 2.0])

    def sums(bounds, levels=None):
        adjacency = Adjacency.ZERO_OUT
        return StackedSum(values={}, bounds=bounds, adjacency=adjacency, levels=levels)

    grid = StackedGrid(bounds, 5, z=np.ones(3), divisors=np.ones(3))
    finer = np.array([[0.1, 1.0]] * 3)
    for wrong in (sums(bounds * 2), sums(bounds[::-1]), sums(bounds[:2]), sums(bounds, finer)):
        with pytest.raises(InputError, match="sums: their sensitivities are not those"):
            grid.add_noise(clean.clone(), torch.zeros(3, 5), sums=wrong)
    with pytest.raises(InputError, match=r"noise: has shape \(1, 5\).* no two models may share"):
        grid.add_noise(clean.clone(), torch.zeros(1, 5), sums=sums(bounds))
    assert grid.add_noise(clean[:2], torch.ones(2, 5), sums=sums(bounds[:2])).all()
