"""J(C; ε), its minimiser, and what it says of a proxy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pacdp.errors import InputError
from pacdp.federation import LocalModel
from pacdp.paper.theory.surrogate import (
    Surrogate,
    compute_clipping_bias,
    compute_proxy_norms,
    predict_thresholds,
)
from pacdp.paper.theory.surrogate_check import make_heart_proxy_task

norms = arrays(float, st.integers(1, 30), elements=st.floats(1e-3, 1e3))
noises = st.floats(-3, 4).map(lambda exponent: 10**exponent)
dimensions = st.integers(1, 10**6)
divisors = st.floats(1, 1e5)
scales = st.floats(1e-3, 1e3)


@given(norms=norms, z=noises, d=dimensions, divisor=divisors)
def test_no_bound_of_a_fine_grid_is_better_than_the_minimiser(norms, z, d, divisor):
    surrogate = Surrogate(norms=norms, dimension=d, divisor=divisor)
    best = surrogate.minimiser(z)
    least = surrogate(best, noise_multiplier=z)
    near = best * np.geomspace(0.5, 2, 2001)
    far = norms.max() * np.geomspace(1e-12, 2, 500)
    for grid in (near, far, norms):
        assert least <= surrogate(grid, noise_multiplier=z).min() * (1 + 1e-9)
    # And it is the grid's best to within a step: J rises to both sides.
    step = near[1] / near[0]
    at = near[surrogate(near, noise_multiplier=z).argmin()]
    assert best / step**2 <= at <= best * step**2


@given(norms=norms, d=dimensions, divisor=divisors, kappa=scales)
def test_more_noise_never_asks_for_a_larger_bound(norms, d, divisor, kappa):
    surrogate = Surrogate(norms=norms, dimension=d, divisor=divisor, kappa=kappa)
    bounds = surrogate.minimiser(np.geomspace(1e-3, 1e4, 40))
    assert np.all(np.diff(bounds) <= 1e-9 * bounds[:-1])
    assert bounds[0] <= norms.max() * (1 + 1e-9)
    assert bounds[-1] > 0


@given(norms=norms, z=noises, d=st.integers(1, 1000), divisor=divisors, scale=scales)
def test_gradients_that_are_longer_ask_for_a_bound_that_is_longer_by_as_much(
    norms, z, d, divisor, scale
):
    one = Surrogate(norms=norms, dimension=d, divisor=divisor).minimiser(z)
    other = Surrogate(norms=norms * scale, dimension=d, divisor=divisor).minimiser(z)
    assert other == pytest.approx(one * scale, rel=1e-6)


@given(norms=norms, bound=scales, z=noises, d=st.integers(1, 1000), times=st.integers(2, 50))
def test_the_noise_term_grows_with_the_dimension_and_only_it_does(norms, bound, z, d, times):
    one = Surrogate(norms=norms, dimension=d, divisor=7)
    other = Surrogate(norms=norms, dimension=d * times, divisor=7)
    noise = one.noise(bound, noise_multiplier=z)
    assert other.noise(bound, noise_multiplier=z) == pytest.approx(times * noise)
    assert other.bias(bound) == one.bias(bound)


@given(norms=norms, z=noises, d=st.integers(1, 1000), times=st.integers(2, 50))
def test_dimension_and_noise_are_one_thing(norms, z, d, times):
    wide = Surrogate(norms=norms, dimension=d * times**2, divisor=7).minimiser(z)
    loud = Surrogate(norms=norms, dimension=d, divisor=7).minimiser(z * times)
    assert wide == pytest.approx(loud, rel=1e-6)


@given(
    gradients=arrays(
        float, st.tuples(st.integers(1, 20), st.integers(1, 5)), elements=st.floats(-100, 100)
    ),
    bound=scales,
)
def test_h_is_an_upper_bound_of_the_squared_bias(gradients, bound):
    lengths = np.linalg.norm(gradients, axis=1)
    if lengths.max() > 0:
        surrogate = Surrogate(norms=lengths, dimension=1, divisor=1)
        assert compute_clipping_bias(gradients, bound) <= surrogate.bias(bound) * (1 + 1e-9) + 1e-12


@given(lengths=norms, bound=scales)
def test_h_is_the_squared_bias_where_all_gradients_point_one_way(lengths, bound):
    surrogate = Surrogate(norms=lengths, dimension=1, divisor=1)
    expected = pytest.approx(
        float(compute_clipping_bias(lengths[:, None], bound)), rel=1e-6, abs=1e-9
    )
    assert float(surrogate.bias(bound)) == expected


def test_a_proxys_norms_are_those_of_its_own_gradients():
    setting = make_heart_proxy_task(0.1, rounds=3)
    found = compute_proxy_norms(setting)
    model = LocalModel(setting.plan(1.0, 1.0, 0)).model
    inputs, labels = setting.proxy.data.train.tensors(setting.proxy.data.task)
    assert len(found) == len(inputs)
    for number in range(5):
        loss = torch.nn.functional.cross_entropy(model(inputs[number][None]), labels[number][None])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        plain = sum(float((part**2).sum()) for part in gradient) ** 0.5
        assert found[number] == pytest.approx(plain, rel=1e-4)


def test_the_guess_rises_with_the_budget_and_falls_with_kappa():
    setting = make_heart_proxy_task(0.1, rounds=3)
    budgets = np.geomspace(0.01, 100, 9)
    bounds = predict_thresholds(setting, budgets)
    assert np.all(np.diff(bounds) > 0)
    assert bounds[-1] < compute_proxy_norms(setting).max()
    assert np.all(predict_thresholds(setting, budgets, kappa=1.0) < bounds)


def test_the_guess_does_not_depend_on_rounds():
    # One budget spread over more releases is as much noise in the end.
    few, many = (
        predict_thresholds(make_heart_proxy_task(0.1, rounds=n), [0.1, 1.0]) for n in (2, 50)
    )
    assert few == pytest.approx(many, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"norms": [0.0, 0.0]}, "norms: are all zero"),
        ({"norms": [-1.0]}, "norms"),
        ({"norms": [np.nan]}, "norms"),
        ({"dimension": 0}, "dimension"),
        ({"divisor": 0}, "divisor"),
        ({"kappa": -1.0}, "kappa"),
    ],
)
def test_what_is_no_surrogate_is_refused(settings, said):
    with pytest.raises(InputError, match=said):
        Surrogate(**{"norms": [1.0], "dimension": 1, "divisor": 1.0, **settings})
