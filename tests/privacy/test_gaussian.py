"""The privacy curve and its inverses, against the same formula in sixty digits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacdp.errors import InputError
from pacdp.privacy import delta_for, epsilon_for, mu_for

mpmath.mp.dps = 60

budgets = st.floats(-3, 6).map(lambda exponent: 10**exponent)
deltas = st.floats(-30, -0.01).map(lambda exponent: 10**exponent)
mus = st.floats(-6, 3.15).map(lambda exponent: 10**exponent)


def true_delta(epsilon: float, mu: float) -> mpmath.mpf:
    e, m = mpmath.mpf(float(epsilon)), mpmath.mpf(float(mu))

    def phi(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return phi(m / 2 - e / m) - mpmath.exp(e) * phi(-m / 2 - e / m)


@given(epsilon=budgets, delta=deltas)
def test_the_largest_mu_is_safe_and_tight(epsilon, delta):
    mu = mu_for(epsilon, delta)
    assert true_delta(epsilon, mu) <= delta
    assert true_delta(epsilon, mu * (1 + 1e-11)) > delta


@given(epsilon=budgets, rest=st.floats(-9, -0.5).map(lambda exponent: 10**exponent))
def test_a_delta_near_one_is_safe_too(epsilon, rest):
    mu = mu_for(epsilon, 1 - rest)
    assert true_delta(epsilon, mu) <= 1 - rest
    assert true_delta(epsilon_for(mu, 1 - rest), mu) <= 1 - rest


@given(mu=mus, delta=deltas)
def test_the_smallest_epsilon_is_safe_and_tight(mu, delta):
    epsilon = epsilon_for(mu, delta)
    assert true_delta(epsilon, mu) <= delta
    tighter = epsilon * (1 - 1e-11) - 1e-11 * delta
    assert epsilon == 0 or true_delta(max(0.0, tighter), mu) > delta or tighter < 0


@given(epsilon=st.floats(0, 50), mu=st.floats(0.01, 10))
def test_delta_agrees_with_sixty_digits(epsilon, mu):
    expected = true_delta(epsilon, mu)
    if expected > 1e-300:
        assert float(delta_for(epsilon, mu)) == pytest.approx(float(expected), rel=1e-11)


@given(epsilon=budgets, delta=deltas)
def test_the_inverses_undo_each_other(epsilon, delta):
    # Near ε = 0 a large δ decides alone, and rounding is relative to it.
    tolerance = 1e-9 * epsilon + 1e-11 * delta
    assert abs(epsilon_for(mu_for(epsilon, delta), delta) - epsilon) <= tolerance


def test_a_delta_that_pays_for_everything_leaves_epsilon_zero():
    assert epsilon_for(1e-6, 1e-5) == 0


def test_accounts_stay_finite_and_right_at_a_million():
    epsilon = float(epsilon_for(mu_for(1e6, 1e-5), 1e-5))
    assert epsilon == pytest.approx(1e6, rel=1e-9)
    assert math.isfinite(epsilon_for(1e8, 1e-5))


def test_arrays_are_answered_element_by_element():
    epsilons = np.geomspace(1e-3, 100, 200).reshape(20, 10)
    whole = mu_for(epsilons, 1e-5)
    assert whole.shape == epsilons.shape
    single = [mu_for(epsilon, 1e-5) for epsilon in epsilons.flat]
    np.testing.assert_allclose(whole.ravel(), single, rtol=1e-13)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0.1), (-1, 0.1), (math.nan, 0.1), (1, 0), (1, 1)]
)
def test_what_is_no_budget_is_refused(epsilon, delta):
    with pytest.raises(InputError, match="must be"):
        mu_for(epsilon, delta)


@pytest.mark.parametrize("epsilon", [5e-324, 9e-101, 2e100, 1e308, [1.0, 1e308]])
def test_a_budget_out_of_range_is_refused(epsilon):
    with pytest.raises(InputError, match=r"epsilon.* = .*: must be a number from 1e-100 to"):
        mu_for(epsilon, 1e-5)


@pytest.mark.parametrize("epsilon", [1e-100, 1e-10, 1e100])
@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-5, 0.5, 0.9998, 1 - 1e-11])
def test_every_budget_in_range_has_a_mu(epsilon, delta):
    mu = float(mu_for(epsilon, delta))
    assert 0 < mu**2 < math.inf
    # Near δ = 1 both directions step to the safe side by more than a part in 10¹².
    guard = 1e-11 + 1e-13 / (1 - delta)
    assert epsilon_for(mu, delta) <= epsilon * (1 + guard) + 4 * guard * delta


def test_a_delta_too_near_one_is_refused():
    with pytest.raises(InputError, match=r"delta = 1 - 1\.1\d*e-16: must be at most 1 - 1e-12"):
        mu_for(1.0, 1 - 1e-16)


def test_a_mu_whose_epsilon_overflows_is_refused():
    with pytest.raises(InputError, match=r"mu = 1e\+155: must be"):
        epsilon_for([1.0, 1e155], 1e-5)


def test_delta_is_a_number_at_both_ends():
    assert delta_for(1e308, 1e-5) == 0
    assert delta_for(1.0, 5e-324) == 0
    assert delta_for(0.0, 1e308) == 1
