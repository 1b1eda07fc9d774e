"""Plans: budgets, caps, noise, and what they promise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binom

from pacdp.data import load_dataset, partition_records
from pacdp.errors import BudgetExceededError, DataError, InputError
from pacdp.federation import Aggregation, Levels, Plan, Privacy, Training, simulate
from pacdp.federation.budgets import assign_budgets
from pacdp.federation.client_sampling import ClientSampling
from pacdp.methods import build_method
from pacdp.privacy import account, calibrate
from tests.plans import plan_for

HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")


def plan(**changes):
    parts = {
        "training": Training(rounds=5, local_steps=1),
        "privacy": Privacy(epsilon=1.0),
    }
    return plan_for(HEART, HOSPITALS, **parts | changes)


def test_levels_by_largest_remainder():
    paper = Levels(levels=[0.01, 0.05, 0.5], shares=[0.6, 0.3, 0.1])
    assert paper.counts(4) == [2, 1, 1]
    assert paper.counts(10) == [6, 3, 1]
    assert paper.counts(50) == [30, 15, 5]
    assert paper.counts(3) == [1, 1, 1]
    assert paper.counts(2) == [1, 1, 0]


@given(
    shares=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    clients=st.integers(1, 200),
    seed=st.integers(0, 100),
)
def test_levels_are_dealt_out_as_promised(shares, clients, seed):
    exact = np.array(shares) / sum(shares)
    levels = Levels(levels=[0.1 * (n + 1) for n in range(len(shares))], shares=exact.tolist())
    held = levels.counts(clients)
    assert sum(held) == clients
    assert (min(held) >= 1) == (clients >= len(shares))
    if min(exact * clients) >= 1:
        assert all(abs(h - e) < 1 for h, e in zip(held, exact * clients, strict=True))
    dealt = levels.assign(clients, seed)
    assert [dealt.count(level) for level in levels.levels] == held
    assert dealt == levels.assign(clients, seed)


def test_sampled_levels_follow_the_shares():
    levels = Levels(levels=[0.1, 1.0], shares=[0.7, 0.3], assignment="sampled")
    share = np.mean(np.array(levels.assign(10_000, 0)) == 0.1)
    assert share == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ([0.1, 0.2], "has 2 values, must have one for each of 3"),
        ([0.1, -1, 2], r"epsilon\[1\]"),
        (0.0, "epsilon"),
    ],
)
def test_wrong_budgets(budgets, message):
    with pytest.raises(InputError, match=message):
        assign_budgets(budgets, 3, 0)


@pytest.mark.parametrize("shares", [[0.5, 0.4], [1.0], [1.2, -0.2]])
def test_wrong_shares(shares):
    with pytest.raises(ValidationError, match="shares"):
        Levels(levels=[0.1, 0.2], shares=shares)


@given(
    clients=st.integers(1, 30),
    share=st.floats(0.05, 1),
    rounds=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_balanced_sampling_asks_everyone_as_often_as_planned(clients, share, rounds, seed):
    per_round = max(1, round(share * clients))
    sampling = ClientSampling(kind="balanced", clients=clients, per_round=per_round, rounds=rounds)
    drawn = sampling.draw(seed)
    assert all(len(set(chosen)) == per_round for chosen in drawn)
    asked = np.bincount([c for chosen in drawn for c in chosen], minlength=clients)
    cap = sampling.max_participations
    assert cap == math.ceil(per_round * rounds / clients)
    assert asked.max() <= cap
    assert asked.max() - asked.min() <= 1


def test_uniform_sampling_has_a_stated_quantile():
    sampling = ClientSampling(kind="uniform", clients=50, per_round=25, rounds=25, quantile=0.95)
    cap = sampling.max_participations
    assert binom.cdf(cap, 25, 0.5) >= 0.95 > binom.cdf(cap - 1, 25, 0.5)
    assert replace(sampling, quantile=None).max_participations == 25
    often = [
        sum(client in chosen for chosen in sampling.draw(seed))
        for seed in range(20)
        for client in range(50)
    ]
    assert np.mean(np.array(often) > cap) < 0.07


def test_releases_are_counted_as_they_run():
    """E passes touch a record E times whatever the batch; R full steps touch it R times."""
    for training, releases, steps in (
        (Training(rounds=4, local_epochs=5, batch=16), 20, 13 * 5),
        (Training(rounds=4, local_epochs=5), 20, 5),
        (Training(rounds=4, local_steps=3), 12, 3),
        (Training(rounds=4, local_steps=3, batch=16), 4, 3),
        (Training(rounds=4, local_steps=14, batch=16), 8, 14),
    ):
        client = plan(training=training).clients[0]
        assert (client.releases, client.steps) == (releases, steps)


def test_noise_is_calibrated_exactly():
    made = plan(
        training=Training(rounds=10, local_epochs=5, batch=16),
        privacy=Privacy(epsilon=(0.01, 0.05, 0.5, 1.0), adjacency="replace-one"),
    )
    wanted = calibrate(epsilon=[0.01, 0.05, 0.5, 1.0], releases=50, adjacency="replace-one")
    found = [client.noise_multiplier for client in made.clients]
    assert found == pytest.approx(wanted.noise_multiplier.tolist(), rel=1e-12)
    for number, epsilon in enumerate((0.01, 0.05, 0.5, 1.0)):
        assert made.planned_guarantee(number).epsilon == pytest.approx(epsilon, rel=1e-9)
        assert made.planned_guarantee(number).epsilon <= epsilon


@pytest.mark.parametrize("sampling", ["balanced", "uniform"])
def test_asking_few_clients_amplifies_nothing(sampling):
    """The server sees who takes part: a client's noise pays in full for each time it is asked."""
    few = Training(
        rounds=20, local_epochs=3, batch=16, clients_per_round=1, sampling=sampling, cap=0.9
    )
    for number, client in enumerate(plan(training=few).clients):
        assert client.participations < 20
        alone = calibrate(epsilon=1.0, releases=3 * client.participations).release()
        assert client.noise_multiplier == pytest.approx(alone.noise_multiplier, rel=1e-12)
        (each,) = plan(training=few).planned_releases(number)
        assert each.sampling_rate == 1


def test_a_budget_per_release_says_what_the_whole_costs():
    made = plan(privacy=Privacy(epsilon=0.1, scope="per-release"))
    one = made.planned_releases(0)[0].times(1)
    assert account(one).epsilon == pytest.approx(0.1, rel=1e-9)
    assert made.budget(0).epsilon == pytest.approx(account(one.times(5)).epsilon, rel=1e-6)
    result = simulate(made, HEART, HOSPITALS)
    client = result.clients()[0]
    assert (client.label, client.epsilon_budget, client.refused) == ("per-release", 0.1, 0)
    assert client.epsilon_spent > 0.2


def test_the_uniform_baseline_keeps_every_promise():
    made = plan(method=build_method("dp-fedavg"), privacy=Privacy(epsilon=(0.01, 0.05, 0.5, 1.0)))
    assert len({client.noise_multiplier for client in made.clients}) == 1
    assert [made.planned_guarantee(n).epsilon <= 0.01 for n in range(4)] == [True] * 4
    assert [client.budget for client in made.clients] == [0.01, 0.05, 0.5, 1.0]


def test_a_plan_is_saved_and_read_back(tmp_path):
    curve = {"family": "power", "coefficients": [0.5, 0.4]}
    made = plan(
        method=build_method("pac-dp", {"curve": curve}), server=Aggregation(weights="tempered")
    )
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    (tmp_path / "plan.json").write_text('{"data": 3}')
    with pytest.raises(DataError, match="is no plan"):
        Plan.load(tmp_path / "plan.json")


def test_plans_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        plan().seed = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": {}}, "there are none"),
        ({"sizes": {"a": 0}}, "client a: has 0 records"),
        ({"units": {"a": 5}}, "units must be given if it is not record"),
        ({"unit": "patient"}, "units must be given if it is not record"),
        ({"seed": 2**63}, "seed = "),
        (
            {"method": build_method("fixed", {"clipping_bound": 1e-40})},
            "must be a number from 1e-12",
        ),
        ({"training": Training(rounds=2, local_steps=1, clients_per_round=9)}, "at most 4"),
        ({"privacy": Privacy(epsilon=(0.1, 0.2))}, "must have one for each of 4"),
        ({"privacy": Privacy(epsilon=0.1, accountant="paper-rdp")}, "0.18"),
    ],
)
def test_what_cannot_be_planned(changes, message):
    with pytest.raises(InputError, match=message):
        plan(**changes)


@given(
    rounds=st.integers(1, 5),
    per_round=st.integers(1, 4),
    sampling=st.sampled_from(["balanced", "uniform"]),
    cap=st.sampled_from([0.3, 0.9, "rounds"]),
    batch=st.sampled_from(["full", 7, 500]),
    work=st.sampled_from([{"local_epochs": 2}, {"local_steps": 1}, {"local_steps": 9}]),
    epsilon=st.sampled_from([0.05, (0.1, 0.2, 1.0, 3.0)]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    name=st.sampled_from(["fixed", "dp-fedavg"]),
    failures=st.sampled_from([0.0, 0.6]),
    seed=st.integers(0, 50),
)
@settings(max_examples=40)
def test_no_plan_ever_exceeds_a_budget(
    rounds, per_round, sampling, cap, batch, work, epsilon, adjacency, name, failures, seed
):
    made = plan(
        training=Training(
            rounds=rounds,
            clients_per_round=per_round,
            sampling=sampling,
            cap=cap,
            batch=batch,
            **work,
        ),
        privacy=Privacy(epsilon=epsilon, adjacency=adjacency),
        method=build_method(name),
        seed=seed,
    )
    try:
        result = simulate(made, HEART, HOSPITALS, failure_rate=failures, evaluate_every=rounds)
    except BudgetExceededError as error:
        # Every reply was lost, and a client that had paid for one was asked again.
        if failures == 0 or "no client answered" not in str(error):
            raise
        return
    for number, client in enumerate(result.clients()):
        client_plan = made.clients[number]
        assert client.epsilon_spent <= client.epsilon_budget
        assert client.epsilon_planned <= client.epsilon_budget
        assert client.releases <= client.releases_planned == client_plan.releases
        if client.releases:
            (each,) = made.planned_releases(number)
            certified = account(each.times(client.releases)).epsilon
            assert client.epsilon_spent == pytest.approx(certified, rel=1e-12)
        # Who refuses was asked more often than planned, which balanced sampling never does.
        if sampling == "balanced" or cap == "rounds":
            assert client.refused == 0
