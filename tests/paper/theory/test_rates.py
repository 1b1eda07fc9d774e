"""The bounds with their constants, and the best number of rounds."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pacdp.errors import InputError
from pacdp.paper.theory.rates import THEOREMS, RateParameters
from pacdp.privacy import mu_for

logs = st.floats(-2, 2).map(lambda exponent: 10**exponent)


@st.composite
def rate_parameters(draw):
    smoothness = draw(st.floats(0.1, 10))
    return RateParameters(
        smoothness=smoothness,
        strong_convexity=smoothness * draw(st.floats(0.01, 1)),
        gap=draw(logs),
        distance=draw(logs),
        sampling_variance=draw(st.floats(0, 10)),
        dimension=draw(st.integers(1, 1000)),
        clients=draw(st.integers(1, 100)),
        batch=draw(st.integers(1, 1000)),
        clipping_bound=draw(logs),
    )


theorems = st.sampled_from(THEOREMS)


@given(
    theorem=theorems,
    parameters=rate_parameters(),
    share=st.floats(0.05, 1),
    epsilon=st.floats(0.05, 20),
)
def test_no_number_of_rounds_is_better_than_the_best(theorem, parameters, share, epsilon):
    step = share / parameters.smoothness / 2
    best = parameters.best_rounds(theorem, step=step, epsilon=epsilon, delta=1e-5)

    def after(rounds):
        return parameters.bound_at_budget(theorem, rounds, step=step, epsilon=epsilon, delta=1e-5)

    near = range(max(best - 50, 1), best + 50)
    far = {round(value) for value in np.geomspace(1, 100 * best + 100, 200)}
    assert after(best) <= min(after(rounds) for rounds in {*near, *far}) * (1 + 1e-9)


@given(
    theorem=theorems,
    parameters=rate_parameters(),
    epsilon=st.floats(0.05, 5),
    times=st.floats(1.5, 10),
)
def test_a_larger_budget_never_asks_for_fewer_rounds(theorem, parameters, epsilon, times):
    step = 0.5 / parameters.smoothness
    few, many = (
        parameters.best_rounds(theorem, step=step, epsilon=e, delta=1e-5)
        for e in (epsilon, epsilon * times)
    )
    assert few <= many


@given(theorem=theorems, parameters=rate_parameters(), z=logs, times=st.integers(2, 9))
def test_noise_counts_with_its_square_and_the_dimension(theorem, parameters, z, times):
    def noise(**changes):
        changed = RateParameters(**{**parameters.__dict__, **changes})
        step = 0.5 / parameters.smoothness
        of = {"rounds": 10, "step": step}
        loud = changed.error_bound(theorem, noise_multiplier=z, **of)
        return loud - changed.error_bound(theorem, noise_multiplier=0, **of)

    one = noise()
    # The rest is larger by so much that a difference would be rounding.
    assume(
        one
        > 1e-6
        * parameters.error_bound(
            theorem, rounds=10, step=0.5 / parameters.smoothness, noise_multiplier=0
        )
    )
    assert noise(dimension=parameters.dimension * times) == pytest.approx(times * one, rel=1e-6)
    assert noise(clients=parameters.clients * times) == pytest.approx(one / times, rel=1e-3)
    assert noise(batch=parameters.batch * times) == pytest.approx(one / times**2, rel=1e-3)
    longer = noise(clipping_bound=parameters.clipping_bound * times)
    assert longer == pytest.approx(times**2 * one, rel=1e-6)


@given(parameters=rate_parameters(), z=logs, rounds=st.integers(1, 10_000))
def test_no_step_is_better_than_the_tuned_one(parameters, z, rounds):
    at = {"rounds": rounds, "noise_multiplier": z}
    best = parameters.error_bound("non-convex", step=parameters.best_step(**at), **at)
    others = np.geomspace(1e-8, 1, 500) / parameters.smoothness
    assert best <= parameters.error_bound("non-convex", step=others, **at).min() * (1 + 1e-9)


@given(parameters=rate_parameters(), z=logs, rounds=st.integers(1, 10_000))
def test_where_noise_decides_the_tuned_bound_is_linear_in_it_and_falls_with_the_root_of_rounds(
    parameters, z, rounds
):
    at = {"rounds": rounds, "noise_multiplier": z}
    assume(parameters.best_step(**at) < 1 / parameters.smoothness)
    best = parameters.error_bound("non-convex", step=parameters.best_step(**at), **at)
    closed = 2 * np.sqrt(
        2 * parameters.gap * parameters.smoothness * parameters.variance(z) / rounds
    )
    assert best == pytest.approx(float(closed), rel=1e-9)


@given(parameters=rate_parameters(), epsilon=st.floats(0.1, 10))
def test_at_one_budget_a_tuned_step_makes_rounds_free(parameters, epsilon):
    parameters = RateParameters(**{**parameters.__dict__, "sampling_variance": 0.0})
    mu = float(mu_for(epsilon, 1e-5))
    found = []
    for rounds in (10**6, 10**8):
        at = {"rounds": rounds, "noise_multiplier": np.sqrt(rounds) / mu}
        step = parameters.best_step(**at)
        assume(step < 1 / parameters.smoothness)
        found.append(float(parameters.error_bound("non-convex", step=step, **at)))
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@given(parameters=rate_parameters(), z=logs, rounds=st.integers(1, 1000))
def test_the_stated_rates_know_no_dimension(parameters, z, rounds):
    other = RateParameters(**{**parameters.__dict__, "dimension": parameters.dimension * 10})
    for theorem in THEOREMS:
        at = {"rounds": rounds, "noise_multiplier": z}
        assert parameters.stated_rate(theorem, **at) == other.stated_rate(theorem, **at)


def test_what_a_theorem_does_not_cover_is_refused():
    parameters = RateParameters(
        smoothness=1, gap=1, dimension=1, clients=1, batch=1, clipping_bound=1
    )
    with pytest.raises(InputError, match="step = 2: must be at most 1 for non-convex f"):
        parameters.error_bound("non-convex", rounds=1, step=2, noise_multiplier=1)
    with pytest.raises(InputError, match="strong_convexity = 0: must be > 0"):
        parameters.error_bound("strongly convex", rounds=1, step=0.5, noise_multiplier=1)
    with pytest.raises(InputError, match="theorem = 'quasi': must be one of"):
        parameters.error_bound("quasi", rounds=1, step=0.5, noise_multiplier=1)
    biased = RateParameters(**{**parameters.__dict__, "bias": 0.5})
    with pytest.raises(InputError, match=r"bias = 0\.5: must be 0 for convex f"):
        biased.error_bound("convex", rounds=1, step=0.5, noise_multiplier=1)
    with pytest.raises(InputError, match="strong_convexity = 2: must be at most"):
        RateParameters(**{**parameters.__dict__, "strong_convexity": 2.0})
