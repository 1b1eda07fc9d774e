"""Privacy filters: budgets spent by adaptively chosen releases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacdp.errors import BudgetExceededError, InputError
from pacdp.privacy import Adjacency, Filter, Guarantee, Release, Scope, account, calibrate

ZERO_OUT = Adjacency.ZERO_OUT
BUDGET = Guarantee(epsilon=0.5, adjacency=ZERO_OUT)
COIN = Release.clipped_sum(noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=ZERO_OUT)


def gaussian(noise, count=1):
    return Release.clipped_sum(noise_multiplier=noise, count=count, adjacency=ZERO_OUT)


@given(
    epsilon=st.floats(1e-3, 100),
    noises=st.lists(st.floats(0.05, 1e4), min_size=1, max_size=30),
    adjacency=st.sampled_from(Adjacency),
)
def test_adaptive_spending_never_exceeds_the_budget(epsilon, noises, adjacency):
    state = Filter(Guarantee(epsilon=epsilon, adjacency=adjacency))
    made = []
    for noise in noises:
        release = Release.clipped_sum(noise_multiplier=noise, adjacency=adjacency)
        try:
            state = state.spend(release)
        except BudgetExceededError:
            assert account([*made, release]).epsilon > epsilon * (1 - 1e-9)
        else:
            made.append(release)
    if made:
        assert state.realised.epsilon == pytest.approx(account(made).epsilon, rel=1e-12)
        assert state.realised.epsilon <= epsilon


@given(
    epsilon=st.floats(1e-3, 100),
    count=st.integers(1, 2000),
    adjacency=st.sampled_from(Adjacency),
)
def test_a_calibrated_plan_fits_to_the_last_release_and_no_further(epsilon, count, adjacency):
    state = Filter(Guarantee(epsilon=epsilon, adjacency=adjacency))
    plan = calibrate(epsilon=epsilon, releases=count, adjacency=adjacency).release()
    assert state.affordable(plan) == count
    state = state.spend(plan)
    assert state.affordable(plan) == 0
    assert state.least_z is None
    with pytest.raises(BudgetExceededError, match="left: 0 releases"):
        state.spend(plan.times(1))


def test_a_refusal_spends_nothing_and_says_what_is_left():
    state = Filter(BUDGET).spend(gaussian(20, 7))
    with pytest.raises(BudgetExceededError, match="left: 1 releases at noise multiplier 20"):
        state.spend(gaussian(20, 2))
    assert state.spent.total() == 7
    with pytest.raises(BudgetExceededError, match=r"left: one release at z >= 1[0-9]\."):
        state.spend(gaussian(5), gaussian(6))
    assert state.spend(gaussian(state.least_z * (1 + 1e-9))).within_budget


def test_adjacency_must_match():
    other = Release.clipped_sum(noise_multiplier=100, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(InputError, match="under replace-one, but the budget is under zero-out"):
        Filter(BUDGET).spend(other)


def test_sampled_releases_need_a_frozen_plan():
    with pytest.raises(BudgetExceededError, match="must be part of a frozen plan"):
        Filter(BUDGET).spend(COIN.times(1))


def test_a_frozen_plan_is_charged_whole_and_drawn_one_by_one():
    state = Filter(BUDGET).freeze(COIN)
    assert state.charged == account(COIN)
    assert state.realised.epsilon == 0
    state = state.spend(COIN.times(60))
    assert state.charged == account(COIN)
    assert state.realised == account(COIN.times(60))
    assert state.affordable(COIN) == 40
    with pytest.raises(BudgetExceededError, match="40 left"):
        state.spend(COIN.times(41))
    # Any other q or σ is another plan.
    other = Release.clipped_sum(noise_multiplier=11, sampling_rate=0.1, adjacency=ZERO_OUT)
    with pytest.raises(BudgetExceededError, match="0 left"):
        state.spend(other)


def test_gaussian_releases_share_the_budget_with_a_frozen_plan():
    state = Filter(BUDGET).freeze(COIN)
    noisy = gaussian(60)
    fitting = state.affordable(noisy)
    assert 0 < fitting < Filter(BUDGET).affordable(noisy)
    after = state.spend(noisy.times(fitting))
    assert after.charged == account([noisy.times(fitting), COIN])
    assert after.charged.epsilon <= 0.5
    with pytest.raises(BudgetExceededError):
        after.spend(noisy)
    assert state.spend(gaussian(state.least_z)).within_budget


def test_a_plan_is_frozen_before_the_first_release():
    with pytest.raises(InputError, match="before the first release"):
        Filter(BUDGET).spend(gaussian(100)).freeze(COIN)
    with pytest.raises(BudgetExceededError, match="the sampled plan reaches"):
        Filter(BUDGET).freeze(COIN.times(1000))
    with pytest.raises(InputError, match="only Poisson-sampled"):
        Filter(BUDGET).freeze(gaussian(100))


def test_the_budget_moves_but_not_below_what_is_spent():
    state = Filter(BUDGET).spend(gaussian(20, 7))
    assert state.rebudget(0.47).budget.epsilon == 0.47
    assert state.rebudget(2).affordable(gaussian(20)) > state.affordable(gaussian(20))
    with pytest.raises(BudgetExceededError, match="below the spent"):
        state.rebudget(0.4)


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0}, {"scope": Scope.PER_RELEASE}, {"accountant": "rdp"}]
)
def test_what_is_no_budget_is_refused(wrong):
    with pytest.raises(InputError, match="budget"):
        Filter(Guarantee(**({"epsilon": 0.5, "adjacency": ZERO_OUT} | wrong)))


@pytest.mark.parametrize("epsilon", [5e-324, 1e308])
def test_a_budget_that_cannot_be_represented_is_refused(epsilon):
    with pytest.raises(InputError, match=r"must be a number from 1e-100 to 1e\+100"):
        Filter(Guarantee(epsilon=epsilon, adjacency=ZERO_OUT))
    with pytest.raises(InputError, match=r"must be a number from 1e-100 to 1e\+100"):
        Filter(BUDGET).rebudget(epsilon)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-100, 5e-324), (1e100, 1e-5)])
def test_the_smallest_and_the_largest_budget_can_be_spent(epsilon, delta):
    state = Filter(Guarantee(epsilon=epsilon, delta=delta, adjacency=ZERO_OUT))
    after = state.spend(gaussian(state.least_z * (1 + 1e-11)))
    assert after.charged.epsilon == pytest.approx(epsilon, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        after.spend(gaussian(state.least_z))
