"""Baselines for budgets of single records: what each level costs, and what the ledger says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pacdp.data import load_dataset, partition_records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import Broadcast, Checkpoint, Client, LocalModel, Privacy, Training, simulate
from pacdp.methods import METHODS, build_method
from pacdp.methods.rpdp_fl_original import RATES, PublishedRenyi, fit_rate_curve
from pacdp.privacy import (
    DEFAULT_DELTA,
    MemoryLedger,
    Release,
    SQLiteLedger,
    account,
    calibrate,
    mu_for,
)
from pacdp.tasks import Classification
from tests.plans import plan_of

HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")
RECORDS = HOSPITALS.client_records(HEART)
LEVELS = {"levels": [0.5, 1.0, 4.0], "shares": [0.5, 0.3, 0.2]}
NAMES = ["rpdp-fl", "rpdp-fl-original", "smallest-budget", "drop-small-budgets"]


def plan(
    name,
    *,
    sizes=None,
    units=None,
    unit="record",
    rounds=2,
    steps=3,
    records=LEVELS,
    budgets=None,
    **privacy,
):
    return plan_of(
        units=units,
        budgets=budgets,
        unit=unit,
        sizes=sizes or HOSPITALS.sizes_by_client,
        shape=HEART.shape,
        task=Classification(2),
        method=build_method(name, {"clipping_bound": 0.7}),
        training=Training(rounds=rounds, local_steps=steps, batch="full"),
        privacy=Privacy(**{"epsilon": 10.0} | privacy, records=records),
    )


def level_rates(client):
    return [terms.sampling_rate for terms in client.charges[0].levels]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", NAMES)
def test_no_level_spends_more_than_its_budget(name, adjacency):
    # The caps differ, so that some clients have fewer levels than declared.
    made = plan(name, epsilon=(10.0, 0.8, 0.5, 0.3), adjacency=adjacency)
    result = simulate(made, HEART, HOSPITALS, engine="serial")
    assert all(bool(torch.isfinite(value).all()) for value in result.model.values())
    for number, ledger in enumerate(result.ledgers):
        client = made.clients[number]
        assert result.refused[number] == 0
        assert ledger.count_releases(made.run).total() == client.releases
        states = ledger.filter.by_level
        assert len(states) == len(client.levels) == 3
        for state, level in zip(states, client.levels, strict=True):
            assert state.charged.epsilon <= state.budget.epsilon
            assert state.realised.epsilon <= state.charged.epsilon * (1 + 1e-9)
            if not METHODS[name].label:
                assert state.budget.epsilon == level.budget


def test_rates_of_levels_come_from_a_real_accountant():
    made = plan("rpdp-fl", epsilon=(10.0, 10.0, 0.8, 0.3))
    noise = float(calibrate(epsilon=4.0, releases=6).noise_multiplier)
    for number, client in enumerate(made.clients):
        (spec,) = client.charges
        # The noise is common to all: what the largest level of any client needs.
        assert spec.noise_multiplier == pytest.approx(noise, rel=1e-9)
        assert all(bound == 1 for bound in spec.ratios)
        rates = level_rates(client) or [spec.sampling_rate] * 3
        held = sum(q * level.units for q, level in zip(rates, client.levels, strict=True))
        assert client.divisor == pytest.approx(held, rel=1e-12)
        for level, rate in zip(client.levels, rates, strict=True):
            release = Release.clipped_sum(
                noise_multiplier=noise, adjacency="zero-out", count=6, sampling_rate=rate
            )
            assert level.budget * (1 - 1e-3) < account(release).epsilon <= level.budget
        assert max(made.level_costs(number)) <= max(level.budget for level in client.levels)
    assert level_rates(made.clients[0])[2] == 1.0
    # Under a cap of 0.3 all records are alike.
    assert made.clients[3].charges[0].levels == ()
    assert made.clients[3].charges[0].sampling_rate < level_rates(made.clients[0])[0]


def test_the_noise_is_for_the_largest_level_that_a_record_has():
    records = {"levels": [0.5, 1.0, 4.0], "shares": [0.5, 0.45, 0.05]}
    made = plan("rpdp-fl", sizes={"a": 5, "b": 4}, records=records, rounds=1, steps=2)
    assert [level.units for level in made.clients[0].levels][2] == 0
    noise = float(calibrate(epsilon=1.0, releases=2).noise_multiplier)
    assert made.clients[0].noise_multiplier == pytest.approx(noise, rel=1e-9)
    assert level_rates(made.clients[0])[1:] == [1.0, 1.0]
    fixed = plan("fixed", sizes={"a": 5, "b": 4}, records=records, rounds=1, steps=2)
    assert fixed.clients[0].epsilon == 1.0
    # A level without records has no part in what is released.
    assert fixed.clients[0].charges[0].ratios[1:] == (1.0, 0.0)


@pytest.mark.parametrize("name", ["rpdp-fl", "rpdp-fl-original"])
def test_each_level_is_sampled_at_its_rate(name):
    made = plan(name, rounds=1, steps=200)
    client = Client(0, made, RECORDS[0])
    drawn = []

    class Recording(type(client.noise_source(0))):
        def coins(self, count, rate):
            coins = super().coins(count, rate)
            drawn.append((count, rate, coins))
            return coins

    client.noise = lambda number: Recording()
    client.answer(Broadcast(0, LocalModel(made).state()))
    rates, units = level_rates(client.client_plan), [p.units for p in client.client_plan.levels]
    assert len(set(rates)) == 3
    for number, (rate, count) in enumerate(zip(rates, units, strict=True)):
        # Coins of every rate for every record, so that the time does not tell who has which level.
        mine = [coins for n, q, coins in drawn[number::3] if (n, q) == (sum(units), rate)]
        assert len(mine) == 200
        taken = torch.stack(mine)[:, client.levels == number].float().sum(1).mean()
        spread = math.sqrt(count * rate * (1 - rate) / 200)
        assert float(taken) == pytest.approx(count * rate, abs=5 * spread + 1e-9)


def test_whole_patients_are_sampled_by_their_level():
    patients = replace(RECORDS[0], units=np.arange(200) // 2)
    made = plan("rpdp-fl", sizes={"a": 200}, units={"a": 100}, unit="patient")
    assert [level.units for level in made.clients[0].levels] == [50, 30, 20]
    rates = level_rates(made.clients[0])
    assert made.clients[0].divisor == pytest.approx(50 * rates[0] + 30 * rates[1] + 20)
    client = Client(0, made, patients)
    for number in range(2):
        client.answer(Broadcast(number, LocalModel(made).state()))
    for state, level in zip(client.ledger.filter.by_level, made.clients[0].levels, strict=True):
        assert level.budget * (1 - 1e-3) < state.charged.epsilon <= level.budget


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", ["rpdp-fl", "rpdp-fl-original"])
def test_a_plan_with_levels_is_frozen_as_a_whole_before_the_first_release(name, durable, tmp_path):
    drawn = plan(name)
    held = {
        client.name: {level.epsilon: level.units for level in client.levels}
        for client in drawn.clients
    }
    levels = drawn.clients[0].declared_levels
    made = plan(name, records={"levels": levels}, budgets=held)
    records = replace(
        RECORDS[0], budgets=np.repeat(levels, [level.units for level in made.clients[0].levels])
    )
    budget, costs = made.budget(0), made.level_budgets(0)

    def open_ledger():
        path = tmp_path / "ledger.db"
        if path.exists():
            return SQLiteLedger(path)
        created = SQLiteLedger.create(
            path, client=made.clients[0].name, budget=budget, levels=levels
        )
        for number, cost in enumerate(costs if made.label else ()):
            created.set_budget(cost, level=number)
        return created

    in_memory = MemoryLedger(budget, levels=levels, level_budgets=costs)
    ledger = open_ledger() if durable else in_memory
    client, start = Client(0, made, records, ledger=ledger), LocalModel(made).state()
    client.answer(Broadcast(0, start))
    state = ledger.filter
    assert (state.frozen.total(), state.spent.total()) == (6, 3)
    # What is sampled is charged as a whole; what always takes part, as it is released.
    costs = [part.charged.epsilon for part in state.by_level]
    assert costs[:2] == pytest.approx(made.level_costs(0)[:2], rel=1e-9)
    assert costs[2] < 0.8 * made.level_costs(0)[2]
    if durable:
        # Whoever opens the file again finds the frozen plan, and goes on with it.
        ledger = open_ledger()
        client = Client(0, made, records, ledger=ledger)
    client.answer(Broadcast(1, start))
    assert (ledger.filter.frozen.total(), ledger.filter.spent.total()) == (6, 6)
    for part, cost in zip(ledger.filter.by_level, made.level_costs(0), strict=True):
        assert part.charged.epsilon == pytest.approx(cost, rel=1e-9)
        assert part.charged.epsilon <= part.budget.epsilon
    with pytest.raises(BudgetExceededError):
        client.answer(Broadcast(1, start))


def test_a_ledger_with_a_smaller_level_refuses_the_plan_before_anything_is_released():
    made = plan("rpdp-fl")
    ledger = MemoryLedger(made.budget(0), levels=(0.5, 1.0, 4.0), level_budgets=(0.4, 1.0, 4.0))
    client = Client(0, made, RECORDS[0], ledger=ledger)
    with pytest.raises(BudgetExceededError, match=f"{made.clients[0].name}: the sampled plan"):
        client.answer(Broadcast(0, LocalModel(made).state()))
    assert not ledger.filter.spent
    assert not ledger.filter.frozen
    # A level that is never sampled is not frozen; it is refused as soon as it would exceed.
    ledger = MemoryLedger(made.budget(0), levels=(0.5, 1.0, 4.0), level_budgets=(0.5, 1.0, 1.5))
    client = Client(0, made, RECORDS[0], ledger=ledger)
    with pytest.raises(BudgetExceededError, match="would reach"):
        client.answer(Broadcast(0, LocalModel(made).state()))
    assert not ledger.filter.spent


@pytest.mark.parametrize("wrong", ["one rate", "rates of others", "whole batches"])
def test_levels_must_be_sampled_as_planned(wrong):
    made = plan("rpdp-fl")
    client = Client(0, made, RECORDS[0])

    class Wrong(type(client.method)):
        def train(self, context):
            rates = level_rates(context.client_plan)
            value = {
                "one rate": lambda: context.sampled_sum(rates[1], 0.7),
                "rates of others": lambda: context.sampled_sum(rates[::-1], 0.7),
                "whole batches": lambda: context.clipped_sum(next(context.batches()), 0.7),
            }[wrong]()
            return context.release(value)

    client.method = Wrong()
    with pytest.raises(BudgetExceededError, match="was not paid for"):
        client.answer(Broadcast(0, LocalModel(made).state()))


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_resumed(name, tmp_path):
    made = plan(name)
    checkpoint = Checkpoint(tmp_path / "c.pt", run=made.run)
    whole = simulate(made, HEART, HOSPITALS)

    def stop(*_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(made, HEART, HOSPITALS, on_round=stop, checkpoint=checkpoint)
    again = simulate(made, HEART, HOSPITALS, checkpoint=checkpoint)
    assert all(torch.equal(again.model[key], value) for key, value in whole.model.items())
    assert [b.filter for b in again.ledgers] == [b.filter for b in whole.ledgers]


def test_sampled_levels_spend_evenly():
    with pytest.raises(InputError, match="spending = late: must be even for rpdp-fl"):
        plan("rpdp-fl", spending={"policy": "late", "growth": 2.0})


def test_the_published_curve():
    """The fit of scipy is the same, and the simulated costs are those of dp-accounting."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant
    from scipy.optimize import curve_fit

    curve = fit_rate_curve(10.0, releases=750, delta=1e-4)
    accountant = PublishedRenyi()
    costs = accountant.simulate(RATES, curve.noise_multiplier, 750, 1e-4)
    assert costs[-1] == pytest.approx(10.0, rel=1e-9)
    for rate in (RATES[0], RATES[50], RATES[150]):
        other = RdpAccountant(accountant.orders.tolist(), NeighboringRelation.ADD_OR_REMOVE_ONE)
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(curve.noise_multiplier))
        other.compose(event, 750)
        assert float(costs[rate == RATES][0]) == pytest.approx(other.get_epsilon(1e-4), rel=1e-6)
    (a, b, c), _ = curve_fit(
        lambda q, a, b, c: np.exp(a * q + b) + c, RATES, costs, p0=(1, 1, 1), maxfev=5000
    )
    for epsilon in (0.1, 0.5, 1.0, 5.0, 9.0):
        assert curve.rate(epsilon) == pytest.approx((np.log(epsilon - c) - b) / a, abs=1e-4)
    assert curve.rate(curve.floor) == 0.0
    assert curve.rate(1e9) == 1.0


def test_the_published_curve_overspends_and_the_ledger_says_so():
    """In the publication's setting for Heart Disease, ε = 0.1 costs a tenth more."""
    terms = {
        "records": {"levels": [0.1, 1.0, 10.0], "shares": [0.7, 0.2, 0.1]},
        **{"rounds": 15, "steps": 50, "delta": 1e-4},
    }
    made = plan("rpdp-fl-original", **terms)
    costs = made.level_costs(0)
    assert costs[0] == pytest.approx(0.11, abs=1e-3)
    assert costs[1] < 1.0
    assert made.label == "rpdp-fl-original"
    assert made.budget(0).epsilon == pytest.approx(max(costs), rel=1e-6)
    assert made.level_budgets(0) == pytest.approx(costs, rel=1e-6)
    ledger = Client(0, made, RECORDS[0]).ledger
    assert [state.budget.epsilon for state in ledger.filter.by_level] == list(made.level_budgets(0))
    # Published noise does not depend on the adjacency; its cost does.
    swapped = plan("rpdp-fl-original", **terms, adjacency="replace-one")
    specs = made.clients[0].charges[0], swapped.clients[0].charges[0]
    assert specs[0].noise_multiplier == specs[1].noise_multiplier
    assert specs[0].levels == specs[1].levels
    assert swapped.level_costs(0)[0] > costs[0]


def test_one_published_rate_for_each_client():
    made = plan("rpdp-fl-original", epsilon=(4.0, 1.0, 0.5, 2.0), records=None, rounds=3, steps=20)
    curve = fit_rate_curve(4.0, releases=60, delta=1e-5)
    for number, epsilon in enumerate((4.0, 1.0, 0.5, 2.0)):
        spec = made.clients[number].charges[0]
        assert spec.noise_multiplier == curve.noise_multiplier
        rate = 1.0 if epsilon == 4.0 else curve.rate(epsilon)
        assert spec.sampling_rate == rate
        assert made.clients[number].divisor == pytest.approx(rate * made.clients[number].units)
        assert made.budget(number).epsilon == pytest.approx(
            made.planned_guarantee(number).epsilon, rel=1e-6
        )
        assert made.level_budgets(number) == ()


def test_records_below_the_published_curve_are_left_out():
    # Over so few releases the curve is a line that meets ε > 0 at q = 0.
    records = {"levels": [0.05, 4.0], "shares": [0.5, 0.5]}
    made = plan("rpdp-fl-original", records=records, rounds=2, steps=2)
    (spec,) = made.clients[0].charges
    assert [tuple(terms) for terms in spec.levels] == [(0.0, 1.0), (1.0, 1.0)]
    assert made.clients[0].divisor == made.clients[0].levels[1].units
    assert made.level_costs(0)[0] == 0.0
    result = simulate(made, HEART, HOSPITALS)
    assert result.ledgers[0].filter.by_level[0].charged.epsilon == 0.0
    # A client without other budgets samples at the smallest rate, and pays what that costs.
    alone = plan("rpdp-fl-original", epsilon=(4.0, 4.0, 0.05, 4.0), records=None, rounds=2, steps=2)
    assert alone.clients[2].charges[0].sampling_rate == RATES[0]
    assert alone.budget(2).epsilon == pytest.approx(alone.planned_guarantee(2).epsilon, rel=1e-6)


def test_labelled_levels_of_a_budget_per_release():
    made = plan("fixed", scope="per-release")
    result = simulate(made, HEART, HOSPITALS)
    assert result.refused.total() == 0
    for state, level in zip(result.ledgers[0].filter.by_level, made.clients[0].levels, strict=True):
        assert level.budget < state.charged.epsilon <= state.budget.epsilon


def test_smallest_budget_uses_the_smallest_level_for_all():
    made = plan("smallest-budget", epsilon=(10.0, 0.8, 0.5, 0.3))
    assert [client.epsilon for client in made.clients] == [0.5, 0.5, 0.5, 0.3]
    for number, client in enumerate(made.clients):
        assert client.charges[0].levels == ()
        assert client.divisor == client.units
        assert made.planned_guarantee(number).epsilon == pytest.approx(client.epsilon, rel=1e-9)
        assert made.planned_guarantee(number).epsilon <= client.epsilon


def test_dropping_small_budgets_maximises_signal_over_noise():
    made = plan("drop-small-budgets", epsilon=(10.0, 0.8, 0.5, 0.3))
    for client in made.clients:
        units = [level.units for level in client.levels]
        budgets = [level.budget for level in client.levels]
        kept = {e: sum(n for b, n in zip(budgets, units, strict=True) if b >= e) for e in budgets}
        signal = {e: n * float(mu_for(e, DEFAULT_DELTA)) for e, n in kept.items()}
        assert signal[client.epsilon] == max(signal.values())
        assert client.divisor == pytest.approx(kept[client.epsilon])
    assert made.clients[0].epsilon == 4.0
    assert made.clients[0].charges[0].ratios == (0.0, 0.0, 1.0)
    assert made.level_costs(0)[:2] == [0.0, 0.0]
    # Where nearly all records have the middle level, it is the threshold.
    middle = {"levels": [0.5, 1.0, 2.0], "shares": [0.05, 0.9, 0.05]}
    assert plan("drop-small-budgets", records=middle).clients[0].charges[0].ratios == (0, 1, 1)


def test_records_that_are_left_out_change_nothing():
    made = plan("drop-small-budgets", rounds=1)
    noise = {"noise": lambda number: Silence()}
    client = Client(0, made, RECORDS[0], **noise)
    left_out = (client.levels < 2).numpy()
    features = RECORDS[0].features.copy()
    features[left_out] = 1 - features[left_out]
    other = Client(0, made, replace(RECORDS[0], features=features), **noise)
    start = Broadcast(0, LocalModel(made).state())
    mine, theirs = client.answer(start).update, other.answer(start).update
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())
    features[~left_out] = 1 - features[~left_out]
    third = Client(0, made, replace(RECORDS[0], features=features), **noise)
    assert any(not torch.equal(mine[k], v) for k, v in third.answer(start).update.items())


class Silence:
    """Noise that is none, to see what it would have covered."""

    def integers(self, count, scale):
        return torch.zeros(count, dtype=torch.float64)


@pytest.mark.parametrize("name", ["smallest-budget", "drop-small-budgets"])
def test_without_levels_they_are_fixed(name):
    made, fixed = (
        plan(kind, records=None, epsilon=(0.5, 1.0, 2.0, 4.0)) for kind in (name, "fixed")
    )
    assert made.clients == fixed.clients
    results = [simulate(each, HEART, HOSPITALS).model for each in (made, fixed)]
    assert all(torch.equal(results[0][key], value) for key, value in results[1].items())
