"""Accountants and calibration: published check values, an independent library, and properties."""

import itertools
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.errors import InputError
from pacdp.privacy import (
    Adjacency,
    Release,
    Scope,
    account,
    calibrate,
    calibrate_sampling_rate,
    total_mu,
)

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE

noises = st.floats(-1.5, 4).map(lambda exponent: 10**exponent)
counts = st.floats(0, 6).map(lambda exponent: round(10**exponent))
budgets = st.floats(-3, 2).map(lambda exponent: 10**exponent)
deltas = st.floats(-12, -1).map(lambda exponent: 10**exponent)
adjacencies = st.sampled_from(Adjacency)


def clipped(noise, count=1, adjacency=ZERO_OUT, sampling_rate=1.0):
    return Release.clipped_sum(
        noise_multiplier=noise, count=count, adjacency=adjacency, sampling_rate=sampling_rate
    )


# σ/C, releases, then ε: exact zero-out, exact replace-one, the paper's accountant.
CHECK_VALUES = [
    (1, 1, 4.377178, 9.997256, 5.302585),
    (10, 13, 1.386182, 3.009437, 1.795610),
    (48.448, 13, 0.246930, 0.525479, 0.359977),
    (48.448, 625, 2.064563, 4.540110, 2.610583),
    (5, 100, 9.997256, 24.381611, 11.756463),
]
RELEASES = (1, 13, 65, 625)
CALIBRATED = {
    0.01: (243.78544, 878.98090, 1965.46103, 6094.63594),
    0.1: (30.74957, 110.86914, 247.91093, 768.73915),
    1: (3.73063, 13.45098, 30.07731, 93.26579),
    5: (0.89187, 3.21568, 7.19047, 22.29671),
}


@pytest.mark.parametrize(("noise", "count", "zero_out", "replace_one", "paper"), CHECK_VALUES)
def test_check_values(noise, count, zero_out, replace_one, paper):
    assert account(clipped(noise, count)).epsilon == pytest.approx(zero_out, abs=6e-7)
    assert account(clipped(noise, count, REPLACE_ONE)).epsilon == pytest.approx(
        replace_one, abs=6e-7
    )
    by_paper = account(clipped(noise, count), accountant="paper-rdp")
    assert by_paper.epsilon == pytest.approx(paper, abs=6e-7)


@pytest.mark.parametrize("epsilon", CALIBRATED)
def test_calibrated_check_values(epsilon):
    found = calibrate(epsilon=epsilon, releases=RELEASES).noise_multiplier
    np.testing.assert_allclose(found, CALIBRATED[epsilon], atol=6e-6)


def test_unequal_multipliers():
    releases = [clipped(noise) for noise in (20, 30, 40, 25)]
    assert total_mu(releases) == pytest.approx(0.07639444, abs=6e-9)
    assert account(releases).epsilon == pytest.approx(0.25407203, abs=6e-9)


@pytest.mark.parametrize(
    ("noise", "count", "adjacency"),
    list(itertools.product((2, 5, 20, 300), (1, 13, 1000), Adjacency)),
)
def test_exact_agrees_with_dp_accounting(noise, count, adjacency):
    relation = {
        ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    exact = account(clipped(noise, count, adjacency)).epsilon
    # Asked of the library directly, and not through our wrapper of it.
    peer = PLDAccountant(relation, value_discretization_interval=max(exact, 1e-3) * 2e-5)
    peer.compose(dp_accounting.GaussianDpEvent(noise), count)
    assert exact == pytest.approx(peer.get_epsilon(1e-5), rel=3e-5)
    ours = account(clipped(noise, count, adjacency), accountant="pld").epsilon
    assert exact <= ours * (1 + 1e-9)
    assert ours == pytest.approx(exact, rel=1e-4)


def test_two_releases_in_a_row_agree_with_dp_accounting():
    peer = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    peer.compose(dp_accounting.GaussianDpEvent(20), 3)
    peer.compose(dp_accounting.GaussianDpEvent(7), 2)
    assert account([clipped(20, 3), clipped(7, 2)]).epsilon == pytest.approx(
        peer.get_epsilon(1e-5), rel=1e-4
    )


@given(epsilon=budgets, delta=deltas, count=counts, adjacency=adjacencies)
def test_calibration_meets_its_target_from_below(epsilon, delta, count, adjacency):
    plan = calibrate(epsilon=epsilon, releases=count, delta=delta, adjacency=adjacency)
    certified = account(plan.release(), delta=delta)
    assert certified.epsilon <= epsilon
    assert certified.adjacency is adjacency
    # And from close by: a ten-billionth less noise would be too little.
    less = replace(plan.release(), noise_multiplier=float(plan.noise_multiplier) * (1 - 1e-10))
    assert account(less, delta=delta).epsilon > epsilon


@pytest.mark.parametrize(
    ("accountant", "smallest", "largest"),
    [("rdp", 1e-3, 100), ("paper-rdp", 0.19, 100), ("basic", 1e-3, 0.9)],
)
@given(data=st.data(), count=counts)
def test_other_accountants_calibrate_from_below_and_never_beat_exact(
    data, count, accountant, smallest, largest
):
    epsilon = data.draw(st.floats(smallest, largest))
    plan = calibrate(epsilon=epsilon, releases=count, accountant=accountant)
    assert account(plan.release(), accountant=accountant).epsilon <= epsilon
    assert account(plan.release()).epsilon <= epsilon


@given(noise=noises, count=counts, delta=deltas, factor=st.floats(1.01, 3))
def test_epsilon_is_monotone(noise, count, delta, factor):
    base = account(clipped(noise, count), delta=delta).epsilon
    assert account(clipped(noise * factor, count), delta=delta).epsilon <= base
    assert account(clipped(noise, math.ceil(count * factor)), delta=delta).epsilon >= base
    assert account(clipped(noise, count), delta=min(delta * factor, 0.5)).epsilon <= base


@given(epsilon=budgets, delta=deltas, count=counts, factor=st.floats(1.01, 3))
def test_noise_is_monotone(epsilon, delta, count, factor):
    def noise(**changed):
        return calibrate(**({"epsilon": epsilon, "delta": delta, "releases": count} | changed)).z

    assert noise(epsilon=epsilon * factor) < noise()
    assert noise(delta=delta * factor) < noise()
    assert noise(releases=math.ceil(count * factor)) > noise()


@given(
    groups=st.lists(
        st.lists(st.tuples(noises, counts), min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_composition_is_associative_and_commutative(groups):
    releases = [clipped(*item) for group in groups for item in group]
    assert total_mu(releases) == total_mu(releases[::-1])
    by_group = math.sqrt(sum(total_mu(clipped(*item) for item in group) ** 2 for group in groups))
    assert total_mu(releases) == pytest.approx(by_group, rel=1e-12)
    split = [part for r in releases for part in (r.times(r.count), r.times(1))]
    merged = [r.times(r.count + 1) for r in releases]
    assert total_mu(split) == pytest.approx(total_mu(merged), rel=1e-12)


@given(noise=noises, count=counts)
def test_zero_out_equals_replace_one_at_twice_the_noise(noise, count):
    assert (
        account(clipped(noise, count)).epsilon
        == account(clipped(2 * noise, count, REPLACE_ONE)).epsilon
    )


@given(noise=st.floats(1, 1000), records=st.integers(2, 20), releases=st.integers(1, 1000))
def test_several_records_of_a_person_cost_more_than_so_many_times_one(noise, records, releases):
    """A group moves a sum by as many clipping bounds as it has records."""

    def epsilon(moved):
        made = Release(
            noise_multiplier=noise, sensitivity=moved, count=releases, adjacency=ZERO_OUT
        )
        return account(made).epsilon

    assert epsilon(float(records)) >= records * epsilon(1.0)


def test_rdp_is_close_to_exact():
    for epsilon in (0.01, 0.1, 1, 5, 100):
        exact = calibrate(epsilon=epsilon, releases=13).z
        assert exact < calibrate(epsilon=epsilon, releases=13, accountant="rdp").z < 1.15 * exact


def test_the_papers_accountant_names_its_floor():
    with pytest.raises(InputError, match=r"cannot certify less than 0\.1827 at δ = 1e-05"):
        calibrate(epsilon=0.1, releases=13, accountant="paper-rdp")
    assert calibrate(epsilon=0.1828, releases=1, accountant="paper-rdp").z > 0


def test_basic_is_the_sum_of_classic_bounds():
    # Corollary 1 with δ/K for each: K·√(2 ln(1.25·K/δ))/z.
    expected = 13 * math.sqrt(2 * math.log(1.25 * 13 / 1e-5)) / 100
    assert account(clipped(100, 13), accountant="basic").epsilon == pytest.approx(expected)
    with pytest.raises(InputError, match="holds below 1 only"):
        account(clipped(1), accountant="basic")


def test_per_release_is_the_papers_reading():
    # Theorem 1 of the paper: z = √(2 ln(1.25/δ))/ε, whatever the number of releases.
    plan = calibrate(epsilon=0.1, releases=13, accountant="basic", scope="per-release")
    assert plan.noise_multiplier == pytest.approx(48.448, abs=1e-4)
    each = account(plan.release(), scope="per-release", accountant="basic")
    assert each.epsilon == pytest.approx(0.1)
    assert each.scope is Scope.PER_RELEASE
    assert "per release" in str(each)
    assert account(plan.release()).epsilon == pytest.approx(0.246930, abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "noise", "count", "adjacency"),
    [
        (0.1, 10, 100, ZERO_OUT),
        (0.1, 10, 100, REPLACE_ONE),
        (0.01, 50, 10, ZERO_OUT),
        (0.3, 0.8, 750, ZERO_OUT),
        (0.5, 30, 65, REPLACE_ONE),
    ],
)
def test_sampled_releases_agree_with_dp_accounting(rate, noise, count, adjacency):
    relation = {
        ZERO_OUT: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    sampled = account(clipped(noise, count, adjacency, rate))
    peer = PLDAccountant(relation, value_discretization_interval=sampled.epsilon * 1e-5)
    peer.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), count
    )
    assert sampled.accountant == "pld"
    assert sampled.epsilon == pytest.approx(peer.get_epsilon(1e-5), rel=1e-3)
    assert sampled.epsilon < account(clipped(noise, count, adjacency)).epsilon
    if adjacency is ZERO_OUT:
        by_rdp = account(clipped(noise, count, adjacency, rate), accountant="rdp")
        assert sampled.epsilon < by_rdp.epsilon < 2 * sampled.epsilon


@pytest.mark.parametrize("adjacency", Adjacency)
def test_sampled_calibration_is_on_the_safe_side(adjacency):
    plan = calibrate(epsilon=0.5, releases=50, sampling_rate=0.2, adjacency=adjacency)
    assert plan.accountant == "pld"
    assert 0.4999 < account(plan.release()).epsilon <= 0.5
    rate = calibrate_sampling_rate(
        epsilon=0.5, releases=50, noise_multiplier=plan.noise_multiplier, adjacency=adjacency
    )
    assert account(rate).epsilon <= 0.5
    assert rate.sampling_rate == pytest.approx(0.2, rel=1e-4)


def test_a_rich_budget_needs_no_sampling():
    plan = calibrate_sampling_rate(epsilon=5, releases=13, noise_multiplier=3.3)
    assert plan.sampling_rate == 1.0


def test_each_client_gets_its_own_rate_at_a_shared_noise():
    # A shared σ at which q = 1 costs ε = 1; a client with ε = 0.1 gets its own q, truly priced.
    shared = float(calibrate(epsilon=1, releases=50).noise_multiplier)
    plan = calibrate_sampling_rate(epsilon=0.1, releases=50, noise_multiplier=shared)
    assert 0.0999 < account(plan).epsilon <= 0.1


@pytest.mark.parametrize("name", ["exact", "paper-rdp", "basic"])
def test_accountants_that_know_no_sampling_say_so(name):
    with pytest.raises(InputError, match="use rdp or pld"):
        account(clipped(10, 100, sampling_rate=0.1), accountant=name)


def test_rdp_refuses_sampling_under_replace_one():
    with pytest.raises(InputError, match="zero-out only"):
        account(clipped(10, 100, REPLACE_ONE, 0.1), accountant="rdp")


def test_pld_refuses_a_delta_it_cannot_resolve():
    with pytest.raises(InputError, match="needs δ >= 1e-10"):
        account(clipped(10), delta=1e-15, accountant="pld")


def test_a_million_is_accounted_for_by_every_general_accountant():
    loud = clipped(1 / 1414, 1)
    for name in ("exact", "rdp", "pld", "paper-rdp"):
        epsilon = account(loud, accountant=name).epsilon
        assert 1.0e6 < epsilon < 2.1e6
        assert math.isfinite(epsilon)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"epsilon": -1},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "0.1"},
        {"epsilon": True},
        {"epsilon": []},
        {"delta": 0},
        {"delta": 1},
        {"delta": math.nan},
        {"releases": 0},
        {"releases": 1.5},
        {"releases": -3},
        {"releases": 1e300},
        {"adjacency": "add-remove"},
        {"accountant": "magic"},
        {"scope": "daily"},
        {"sampling_rate": 0},
        {"sampling_rate": 1.1},
    ],
)
def test_wrong_values_are_refused_by_name(wrong):
    right = {"epsilon": 0.1, "releases": 13}
    name = next(iter(wrong))
    with pytest.raises(InputError, match=name) as refusal:
        calibrate(**(right | wrong))
    assert "\n" not in str(refusal.value)


def test_the_offending_client_is_named():
    with pytest.raises(InputError, match=r"epsilon\[2\] = -1"):
        calibrate(epsilon=[0.1, 0.5, -1], releases=13)


@pytest.mark.parametrize("noise", [0, -1, math.nan, math.inf])
def test_wrong_noise_is_refused(noise):
    with pytest.raises(InputError, match="noise_multiplier"):
        clipped(noise)


def test_absurd_noise_is_refused_and_not_overflowed():
    with pytest.raises(InputError, match="cannot be represented"):
        account(clipped(1e-200))
    assert account(clipped(1e200)).epsilon == 0
    assert 0 < account(clipped(1e170), delta=1e-300).epsilon < 1e-160


@pytest.mark.parametrize(
    "call",
    [
        lambda: calibrate(epsilon=[1, 2], releases=[1, 2, 3]),
        lambda: calibrate(epsilon=[1, 2], releases=3).release(),
        lambda: account(clipped(1), delta=[1e-5, 1e-6]),
        lambda: clipped([1, 2]),
        lambda: clipped(1, 2**53 + 1),
        lambda: account(clipped(1e200), accountant="pld"),
        lambda: account(clipped(1e-200, sampling_rate=0.1)),
        lambda: account(clipped(1, 10**9, sampling_rate=0.5)),
        lambda: calibrate_sampling_rate(epsilon=1, releases=13, noise_multiplier=1e-6),
        lambda: clipped(5e-324, adjacency=REPLACE_ONE),
        lambda: calibrate(epsilon=1, releases=1, accountant=["exact"]),
        lambda: Release(
            noise_multiplier=0.5, sensitivity=1, adjacency=REPLACE_ONE, sampling_rate=0.01
        ),
    ],
)
def test_awkward_calls_are_refused_in_one_line(call):
    with pytest.raises(InputError) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_so_little_sampling_needs_next_to_no_noise():
    assert calibrate(epsilon=1, releases=13, sampling_rate=1e-12).z == 1e-3


def test_adjacencies_do_not_mix():
    with pytest.raises(InputError, match="different adjacencies"):
        account([clipped(1), clipped(1, adjacency=REPLACE_ONE)])


def test_nothing_released_cannot_be_accounted():
    with pytest.raises(InputError, match="is empty"):
        account([])


@settings(max_examples=20)
@given(data=st.lists(st.tuples(budgets, counts, deltas), min_size=1, max_size=30))
def test_calibration_is_vectorised_over_clients(data):
    epsilon, releases, delta = (np.array(column) for column in zip(*data, strict=True))
    together = calibrate(epsilon=epsilon, releases=releases, delta=delta)
    for client, (e, k, d) in enumerate(data):
        alone = calibrate(epsilon=e, releases=k, delta=d)
        assert together.release(client).z == pytest.approx(alone.z, rel=1e-12)
