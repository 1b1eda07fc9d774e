"""Budgets that move over the rounds, and are never exceeded."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pacdp.data import load_dataset, partition_records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import (
    Aggregation,
    Broadcast,
    BudgetSchedule,
    Checkpoint,
    Client,
    LocalModel,
    Privacy,
    Training,
    simulate,
)
from pacdp.federation.client_sampling import ClientSampling
from pacdp.federation.weights import client_weights
from pacdp.methods import build_method
from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger, mu_for
from pacdp.tasks import Classification
from tests.plans import plan_for, plan_of

DATA = load_dataset("heart")
HOSPITALS = partition_records(DATA, "natural")
RECORDS = HOSPITALS.client_records(DATA)


def plan(policy="even", *, growth=None, rounds=6, epsilon=1.0, name="fixed", **training):
    return plan_for(
        DATA,
        HOSPITALS,
        method=name,
        training=Training(rounds=rounds, **{"local_steps": 2} | training),
        privacy=Privacy(epsilon=epsilon, spending=BudgetSchedule(policy=policy, growth=growth)),
    )


@given(growth=st.floats(1, 1e3), planned=st.integers(1, 50))
def test_late_shares_grow_and_are_the_whole(growth, planned):
    late = BudgetSchedule(policy="late", growth=growth)
    shares = [
        late.share(completed=made, spent=0.0, planned=planned, remaining=planned)
        for made in range(planned)
    ]
    assert math.fsum(shares) == pytest.approx(1.0, rel=1e-12)
    assert shares == sorted(shares)
    if planned > 1:
        assert shares[-1] / shares[0] == pytest.approx(growth, rel=1e-9)


@given(data=st.data(), rounds=st.integers(1, 30))
def test_replanned_shares_never_exceed_the_whole(data, rounds):
    """Whoever is asked when: what is spent stays below the budget, and the last round takes all."""
    replan = BudgetSchedule(policy="replan")
    spent, made = 0.0, 0
    for number in range(rounds):
        if data.draw(st.booleans(), label="asked"):
            spent += replan.share(
                completed=made, spent=spent, planned=rounds, remaining=rounds - number
            )
            made += 1
        assert spent < 1
    if made and data.draw(st.booleans(), label="asked once more"):
        spent += replan.share(completed=made, spent=spent, planned=rounds, remaining=1)
        assert spent == pytest.approx(1.0, abs=1e-8)
        assert replan.share(completed=made, spent=spent, planned=rounds, remaining=1) == 0


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["balanced", "uniform"]),
    clients=st.integers(1, 12),
    data=st.data(),
    rounds=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_what_may_come_is_never_less_than_what_comes(kind, clients, data, rounds, seed):
    per_round = data.draw(st.integers(1, clients))
    sampling = ClientSampling(kind=kind, clients=clients, per_round=per_round, rounds=rounds)
    drawn = sampling.draw(seed)
    for start in range(rounds):
        ahead = sampling.remaining_participations(start)
        for client in drawn[start]:
            assert sum(client in asked for asked in drawn[start:]) <= ahead
    assert sampling.remaining_participations(0) == sampling.max_participations


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(["even", "late", "replan"]),
    name=st.sampled_from(["fixed", "dp-fedavg", "nbafl", "aqc", "cgm-median"]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    epsilons=st.tuples(*[st.floats(0.01, 8)] * 4),
    per_round=st.integers(1, 4),
    sampling=st.sampled_from(["balanced", "uniform"]),
    cap=st.sampled_from([0.5, 0.95, "rounds"]),
    rounds=st.integers(1, 7),
    failures=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_no_policy_exceeds_a_budget(
    policy, name, adjacency, epsilons, per_round, sampling, cap, rounds, failures, seed
):
    made = plan_for(
        DATA,
        HOSPITALS,
        method=name,
        training=Training(
            rounds=rounds,
            local_epochs=2,
            batch=100,
            clients_per_round=per_round,
            sampling=sampling,
            cap=cap,
        ),
        privacy=Privacy(
            epsilon=epsilons, adjacency=adjacency, spending=BudgetSchedule(policy=policy)
        ),
        seed=seed,
    )
    result = simulate(made, DATA, HOSPITALS, failure_rate=failures, evaluate_every=100)
    for client in result.clients():
        assert client.epsilon_spent <= client.epsilon_budget * (1 + 1e-9)
        assert client.epsilon_ledger == client.epsilon_spent
        if policy == "replan" and (sampling == "balanced" or cap == "rounds"):
            assert client.refused == 0


def test_late_spends_it_all_and_more_each_time():
    made = plan("late", growth=9.0, rounds=3)
    client = Client(0, made, RECORDS[0])
    scales = [
        client.answer(Broadcast(number, LocalModel(made).state())).noise_scale
        for number in range(3)
    ]
    assert scales[0] / scales[2] == pytest.approx(3.0, rel=1e-12)
    assert client.ledger.filter.realised.epsilon == pytest.approx(1.0, rel=1e-9)
    # By hand: shares 1, 3, 9 of 13, and noise is what a third would need over their root.
    assert scales == pytest.approx([math.sqrt(13 / (3 * w)) for w in (1, 3, 9)], rel=1e-12)
    with pytest.raises(BudgetExceededError):
        client.answer(Broadcast(2, LocalModel(made).state()))


def test_what_was_missed_is_spent_later():
    """Asked in rounds 1, 4 and 6 of six: a sixth, then a third of the rest, then all of it."""
    made = plan("replan")
    client = Client(0, made, RECORDS[0])
    scales = [
        client.answer(Broadcast(number, LocalModel(made).state())).noise_scale
        for number in (0, 3, 5)
    ]
    shares = [1 / 6, 5 / 6 / 3, 5 / 6 * 2 / 3]
    assert scales == pytest.approx([1 / math.sqrt(6 * share) for share in shares], rel=1e-6)
    assert client.ledger.filter.realised.epsilon == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetExceededError, match="has spent its whole budget"):
        client.answer(Broadcast(5, LocalModel(made).state()))


def test_a_server_that_repeats_itself_gets_less_and_less(tmp_path):
    """The first round over and over, with a real ledger: the filter holds whatever is asked."""
    made = plan("replan", rounds=4)
    budget = Guarantee(epsilon=1.0, adjacency=Adjacency.ZERO_OUT)
    ledger = SQLiteLedger.create(tmp_path / "a.ledger", client="cleveland", budget=budget)
    client = Client(0, made, RECORDS[0], ledger=ledger)
    first = Broadcast(0, LocalModel(made).state())
    scales = [client.answer(first).noise_scale for _ in range(4)]
    with pytest.raises(BudgetExceededError, match="8 planned"):
        client.answer(first)
    assert scales == sorted(scales)
    assert SQLiteLedger(tmp_path / "a.ledger").filter.realised.epsilon < 1.0


def test_another_run_of_the_ledger_does_not_show():
    """The noise follows from this run alone: what else the book holds is nobody's business."""
    made = plan("replan")
    used = Client(0, made, RECORDS[0]).ledger
    generous = Guarantee(epsilon=9.0, adjacency=Adjacency.ZERO_OUT)
    other = Client(0, made, RECORDS[0], ledger=type(used)(generous))
    other.ledger.reserve(made.planned_releases(0)[0], run="something else")
    fresh = Client(0, made, RECORDS[0])
    first = Broadcast(2, LocalModel(made).state())
    assert other.answer(first).noise_scale == fresh.answer(first).noise_scale


def test_noise_is_what_the_share_asks_for():
    made = plan("late", growth=4.0, rounds=2)
    result = simulate(made, DATA, HOSPITALS)
    (one, two) = sorted(result.ledgers[0].count_releases(made.run), key=lambda release: release.z)
    mu = float(mu_for(1.0, 1e-5))
    # Shares 1/5 and 4/5 of μ², each over two releases.
    assert 1 / two.z**2 == pytest.approx(mu**2 / 5 / 2, rel=1e-9)
    assert 1 / one.z**2 == pytest.approx(mu**2 * 4 / 5 / 2, rel=1e-9)


def test_weights_by_noise_know_that_it_moves():
    made = plan_of(
        sizes={"a": 100, "b": 100},
        shape=(13,),
        task=Classification(2),
        method=build_method("fixed"),
        training=Training(rounds=4, local_steps=1),
        server=Aggregation(weights="inverse-noise"),
    )
    assert client_weights(made, [0, 1], round=0).tolist() == [0.5, 0.5]
    moved = client_weights(made, [0, 1], round=0, scales=[1.0, 3.0])
    assert moved == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("policy", ["late", "replan"])
def test_a_stopped_run_goes_on_with_the_same_noise(policy, tmp_path):
    made = plan(policy, clients_per_round=2, sampling="uniform")
    whole = simulate(made, DATA, HOSPITALS, failure_rate=0.3)

    class StoppedError(Exception):
        pass

    def stop(row):
        if row.round == 3:
            raise StoppedError

    kept = Checkpoint(tmp_path / "c.pt", run=made.run)
    with pytest.raises(StoppedError):
        simulate(made, DATA, HOSPITALS, failure_rate=0.3, on_round=stop, checkpoint=kept)
    again = simulate(made, DATA, HOSPITALS, failure_rate=0.3, checkpoint=kept)
    assert all((whole.model[name] == again.model[name]).all() for name in whole.model)
    assert whole.clients() == again.clients()


def test_only_even_spending_is_covered_for_sampled_releases():
    with pytest.raises(InputError, match="spending = late: must be even for rpdp-fl"):
        plan_of(
            sizes={"a": 100, "b": 100},
            shape=(13,),
            task=Classification(2),
            method=build_method("rpdp-fl"),
            training=Training(rounds=2, local_steps=1),
            privacy=Privacy(epsilon=(1.0, 2.0), spending=BudgetSchedule(policy="late")),
        )


@pytest.mark.parametrize(
    "changes", [{"name": "nbafl-original"}, {"privacy": {"scope": "per-release"}}]
)
def test_only_a_budget_for_the_whole_training_can_move(changes):
    privacy = Privacy(
        epsilon=0.5, spending=BudgetSchedule(policy="replan"), **changes.get("privacy", {})
    )
    with pytest.raises(InputError, match="spending = replan: must be even where a budget"):
        plan_of(
            sizes={"a": 100},
            shape=(13,),
            task=Classification(2),
            method=build_method(changes.get("name", "fixed")),
            training=Training(rounds=2, local_steps=1),
            privacy=privacy,
        )


def test_without_privacy_there_is_nothing_to_spend():
    made = plan("late", name="fedavg")
    assert simulate(made, DATA, HOSPITALS).clients()[0].epsilon_spent is None


def test_growth_is_for_late_alone():
    with pytest.raises(ValidationError, match="growth: is for the policy late, not replan"):
        BudgetSchedule(policy="replan", growth=2.0)
