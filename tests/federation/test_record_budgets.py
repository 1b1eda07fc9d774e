"""Budgets of single records: no record ever exceeds its own, whatever else is chosen."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from pacdp.clipping import SystemNoise
from pacdp.data import Dataset, Partition, Provenance, Records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import (
    Broadcast,
    Client,
    LocalModel,
    Plan,
    Population,
    Privacy,
    Training,
    make_plan,
    simulate,
)
from pacdp.federation.budget_schedule import BudgetSchedule
from pacdp.federation.budgets import RecordBudgets
from pacdp.federation.configuration import Model, Recipe
from pacdp.federation.engines.base import StackedEngine
from pacdp.federation.weights import client_weights
from pacdp.methods import build_method
from pacdp.privacy import Adjacency, Guarantee, MemoryLedger, SQLiteLedger
from pacdp.tasks import Classification

LEVELS = (0.1, 1.0, 5.0)
MIX = RecordBudgets(levels=LEVELS, shares=(0.7, 0.2, 0.1))
CURVE = {"family": "power", "coefficients": [0.5, 0.3]}


def data(sizes=(30, 12, 21, 9), *, budgets=None, units=None, seed=0):
    random = np.random.default_rng(seed)
    count = sum(sizes)
    records = Records(
        features=random.normal(size=(count, 4)),
        labels=random.integers(0, 2, count),
        budgets=budgets,
        units=units,
    )
    dataset = Dataset(
        name="toy",
        train=records,
        test=Records(features=random.normal(size=(8, 4)), labels=random.integers(0, 2, 8)),
        task=Classification(2),
        unit="record" if units is None else "patient",
        provenance=Provenance(source="a test", licence="none"),
    )
    ends = np.cumsum(sizes)
    split = Partition(
        data="toy",
        kind="iid",
        settings={},
        seed=0,
        clients=tuple(f"client {number}" for number in range(len(sizes))),
        indices=tuple(np.split(np.arange(count), ends[:-1])),
        digest=records.digest,
    )
    return dataset, split


def plan_for(dataset, split, method="fixed", *, seed=0, settings=None, **parts):
    given = {"training": Training(rounds=3, local_epochs=2, batch=8), **parts}
    return make_plan(
        Recipe(**given), build_method(method, settings), Population.of(dataset, split), seed
    )


def epsilon_of(mu, delta=1e-5):
    """Invert the exact trade-off of a Gaussian mechanism, independently of the package."""
    if mu == 0:
        return 0.0

    def excess(epsilon):
        first = norm.cdf(-epsilon / mu + mu / 2)
        return first - math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2)) - delta

    return brentq(excess, 0.0, 200.0, xtol=1e-12) if excess(0.0) > 0 else 0.0


METHODS = {
    "fixed": {"clipping_bound": 0.7},
    "pac-dp": {"curve": CURVE, "schedule": {"kind": "cosine"}},
    "dp-fedavg": {},
    "nbafl": {},
    "aqc": {},
    "smallest-budget": {},
    "drop-small-budgets": {},
}


@settings(max_examples=80, deadline=None)
@given(
    levels=st.lists(
        st.sampled_from([0.05, 0.1, 0.3, 1, 2, 5, 8]), min_size=1, max_size=4, unique=True
    ).map(sorted),
    weights=st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(lambda w: sum(w) > 0),
    caps=st.lists(st.sampled_from([0.08, 0.5, 1.0, 3.0, 20.0]), min_size=4, max_size=4),
    method=st.sampled_from(sorted(METHODS)),
    engine=st.sampled_from(["serial", "threaded", "auto"]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    batch=st.sampled_from([8, "full"]),
    per_round=st.sampled_from([2, "all"]),
    sampling=st.sampled_from(["balanced", "uniform"]),
    policy=st.sampled_from(["even", "late", "replan"]),
    failures=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 1000),
)
def test_no_record_exceeds_its_own_budget(
    levels,
    weights,
    caps,
    method,
    engine,
    adjacency,
    batch,
    per_round,
    sampling,
    policy,
    failures,
    seed,
):
    shares = np.array(weights[: len(levels)], float)
    shares = np.full(len(levels), 1 / len(levels)) if not shares.sum() else shares / shares.sum()
    # One budget for each record, in any order: nothing else is known of the records.
    dataset, split = data()
    drawn = np.random.default_rng(seed).choice(levels, size=len(dataset.train), p=shares)
    dataset, split = data(budgets=drawn)
    plan = plan_for(
        dataset,
        split,
        method,
        seed=seed,
        settings=METHODS[method],
        training=Training(
            rounds=4, local_epochs=2, batch=batch, clients_per_round=per_round, sampling=sampling
        ),
        privacy=Privacy(
            epsilon=tuple(caps),
            adjacency=adjacency,
            spending=BudgetSchedule(policy=policy),
            records=RecordBudgets(levels=tuple(levels)),
        ),
    )
    try:
        result = simulate(plan, dataset, split, engine=engine, failure_rate=failures)
    except BudgetExceededError:
        return  # nobody answered in any round
    sensitivity = plan.adjacency.sensitivity
    for number, client in enumerate(plan.clients):
        budgets = drawn[split.indices[number]]
        assert sum(level.units for level in client.levels) == len(budgets)
        ledger = result.ledgers[number]
        made = ledger.count_releases(plan.run)
        for j, epsilon in enumerate(levels):
            allowed = min(epsilon, caps[number])
            # By the ledger, and by what was released: bound over noise, for each release.
            assert ledger.filter.by_level[j].realised.epsilon <= allowed * (1 + 1e-9)
            mu_squared = 0.0
            for release, count in made.items():
                bound = release.levels[j].ratio if release.levels else 1.0
                moved = bound * release.sensitivity
                assert release.sensitivity in (sensitivity, 2.0, 0.5 * sensitivity, 1.0)
                mu_squared += count * (moved / release.noise_multiplier) ** 2
            assert epsilon_of(math.sqrt(mu_squared)) <= allowed * (1 + 1e-6)
        shown = result.clients()[number]
        assert Counter(shown.spent_by_unit()).total() == len(budgets)
        assert shown.epsilon_spent <= max(level.epsilon_budget for level in shown.levels) * (
            1 + 1e-9
        )


@pytest.mark.parametrize("method", ["fixed", "pac-dp"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_every_level_gets_exactly_its_budget(method, adjacency):
    dataset, split = data()
    plan = plan_for(
        dataset,
        split,
        method,
        settings=METHODS[method],
        privacy=Privacy(adjacency=adjacency, records=MIX),
    )
    assert plan.privacy.epsilon == 5.0
    result = simulate(plan, dataset, split)
    for client in result.clients():
        for level, epsilon in zip(client.levels, LEVELS, strict=True):
            assert level.epsilon_spent == pytest.approx(epsilon, rel=1e-9)
            assert level.epsilon_spent <= epsilon
        assert client.epsilon_spent == pytest.approx(5.0)


@pytest.mark.parametrize("batch", [8, "full"])
def test_all_engines_agree(batch):
    dataset, split = data()
    training = Training(rounds=3, local_epochs=2, batch=batch)
    plan = plan_for(dataset, split, training=training, privacy=Privacy(records=MIX))
    results = [
        simulate(plan, dataset, split, engine=engine)
        for engine in ("serial", "threaded", "stacked")
    ]
    for other in results[1:]:
        for name, value in results[0].model.items():
            torch.testing.assert_close(value, other.model[name], rtol=1e-4, atol=1e-5)


def test_the_clip_in_a_federation_is_that_of_the_records_own_level(monkeypatch):
    """Independently of the plan's numbers: what each record contributes, seen at the sum."""
    dataset, split = data(sizes=(9,), budgets=np.repeat(LEVELS, 3))
    plan = plan_for(
        dataset,
        split,
        settings={"clipping_bound": 1e-3},
        training=Training(rounds=1, local_steps=1),
        privacy=Privacy(records=RecordBudgets(levels=LEVELS)),
    )
    local_model = LocalModel(plan)
    client = Client(0, plan, split.client_records(dataset)[0])
    seen = []

    def spy(value, *, z, divisor, noise):
        seen.append((value.sensitivity * z, {n: v.clone() for n, v in value.values.items()}))
        return {name: torch.zeros_like(tensor) for name, tensor in value.values.items()}

    monkeypatch.setattr("pacdp.federation.client_context.release", spy)
    client.answer(Broadcast(0, local_model.state(), {}))
    sigma, total = seen[0]
    for j, epsilon in enumerate(LEVELS):
        records = split.client_records(dataset)[0]
        for record in range(3 * j, 3 * j + 3):
            features = records.features.copy()
            features[record] = np.nan  # counts as zero
            changed = Records(features=features, labels=records.labels, budgets=records.budgets)
            other = Client(0, plan, changed)
            other.answer(Broadcast(0, local_model.state(), {}))
            _, without = seen[-1]
            moved = math.sqrt(
                sum(float((total[n] - without[n]).double().square().sum()) for n in total)
            )
            # All gradients are far longer than the bounds, so each level uses all that it may.
            assert 0.97 * epsilon <= epsilon_of(moved / sigma) <= epsilon


def test_units_share_a_budget():
    units = np.repeat(np.arange(20), 2)
    budgets = np.where(units < 12, 0.5, 2.0)
    dataset, split = data(sizes=(24, 16), units=units, budgets=budgets)
    privacy = Privacy(records=RecordBudgets(levels=(0.5, 2.0)))
    plan = plan_for(dataset, split, privacy=privacy)
    counts = [[level.units for level in client.levels] for client in plan.clients]
    assert counts == [[12, 0], [0, 8]]
    result = simulate(plan, dataset, split)
    spent = [[level.epsilon_spent for level in client.levels] for client in result.clients()]
    # A level without records has no part in any release.
    assert spent == [pytest.approx([0.5, 0.0]), pytest.approx([0.0, 2.0])]
    assert plan.clients[0].epsilon == 0.5
    budgets[0] = 2.0
    with pytest.raises(InputError, match="budget must be the same for all records of a unit"):
        plan_for(*data(sizes=(24, 16), units=units, budgets=budgets), privacy=privacy)


def test_weights_count_records_by_their_bounds():
    dataset, split = data(sizes=(20, 20), budgets=np.repeat([0.5, 5.0], 20))
    plan = plan_for(
        dataset,
        split,
        server={"weights": "size"},
        privacy=Privacy(records=RecordBudgets(levels=(0.5, 5.0))),
    )
    small, large = client_weights(plan, [0, 1], round=0)
    ratio = plan.clients[0].charges[0].ratios[0]
    assert small / large == pytest.approx(ratio)
    assert plan.clients[0].divisor == pytest.approx(ratio * plan.clients[1].divisor)


def test_the_plan_says_how_many_records_have_a_level_but_not_which():
    budgets = np.random.default_rng(0).choice(LEVELS, 72)
    _, split = data(budgets=budgets)
    random = np.random.default_rng(1)
    order = np.concatenate([random.permutation(index) for index in split.indices])
    assert not np.array_equal(budgets, budgets[order])
    privacy = Privacy(records=RecordBudgets(levels=LEVELS))
    one, other = (
        plan_for(*data(budgets=held), privacy=privacy).model_dump_json()
        for held in (budgets, budgets[order])
    )
    assert one == other


def test_plans_without_levels_do_not_mention_them():
    dataset, split = data()
    text = plan_for(dataset, split, privacy=Privacy(epsilon=1.0)).model_dump_json()
    assert "levels" not in text
    assert '"records":null' not in text


def test_wrong_declarations_are_refused():
    dataset, split = data()
    with pytest.raises(InputError, match="the records have no budgets of their own"):
        plan_for(dataset, split, privacy=Privacy(records=RecordBudgets(levels=LEVELS)))
    dataset, split = data(budgets=np.full(72, 0.3))
    with pytest.raises(
        InputError, match=r"client client 0: .* not among the levels, must be one of 0.1, 1, 5"
    ):
        plan_for(dataset, split, privacy=Privacy(records=RecordBudgets(levels=LEVELS)))
    dataset, split = data()
    far = RecordBudgets(levels=(1e-3, 20.0), shares=(0.5, 0.5))
    with pytest.raises(InputError, match=r"ε = 0.001 is too small beside ε = 20"):
        plan_for(dataset, split, privacy=Privacy(records=far))
    for wrong in (
        {"levels": (1.0, 0.5)},
        {"levels": (0.0, 1.0)},
        {"levels": ()},
        {"levels": (1.0,), "shares": (0.5,)},
        {"levels": (1, 2), "shares": (1.5, -0.5)},
    ):
        with pytest.raises(ValueError, match=r"levels|shares"):
            RecordBudgets(**wrong)


def test_a_client_checks_its_records_against_the_plan():
    dataset, split = data(budgets=np.repeat(LEVELS, 24))
    plan = plan_for(dataset, split, privacy=Privacy(records=RecordBudgets(levels=LEVELS)))
    records = split.client_records(dataset)[0]

    def client(budgets):
        return Client(
            0, plan, Records(features=records.features, labels=records.labels, budgets=budgets)
        )

    client(records.budgets[::-1])
    with pytest.raises(InputError, match="have no budgets"):
        client(None)
    with pytest.raises(InputError, match="a budget that is not among the levels"):
        client(np.full(len(records), 0.2))
    with pytest.raises(InputError, match="not as planned"):
        client(np.full(len(records), 5.0))


class TestLedgers:
    """One filter for each level, in memory and in a file."""

    BUDGET = Guarantee(epsilon=2.0, adjacency=Adjacency.ZERO_OUT)

    def prepare(self, ledger):
        """Return a client with this ledger, and the model it is asked about."""
        dataset, split = data(sizes=(12,), budgets=np.repeat(LEVELS, 4))
        plan = plan_for(
            dataset,
            split,
            training=Training(rounds=2, local_steps=1),
            privacy=Privacy(epsilon=2.0, records=RecordBudgets(levels=LEVELS)),
        )
        client = Client(
            0, plan, split.client_records(dataset)[0], ledger=ledger, noise=lambda _: SystemNoise()
        )
        return client, LocalModel(plan).state()

    @pytest.mark.parametrize("durable", [False, True])
    def test_a_second_run_finds_every_level_spent(self, tmp_path, durable):
        if durable:
            path = tmp_path / "a.ledger"
            ledger = SQLiteLedger.create(path, client="client 0", budget=self.BUDGET, levels=LEVELS)
        else:
            ledger = MemoryLedger(self.BUDGET, levels=LEVELS)
        client, model = self.prepare(ledger)
        for number in range(2):
            client.answer(Broadcast(number, model, {}))
        spent = [state.realised.epsilon for state in ledger.filter.by_level]
        assert spent == pytest.approx([0.1, 1.0, 2.0])
        with pytest.raises(BudgetExceededError):
            client.answer(Broadcast(1, model, {}))
        if durable:
            again = SQLiteLedger(path)
            assert again.filter == ledger.filter
            assert again.filter.levels == LEVELS
            # One level is spent, so nothing more may be released, although others have more.
            again.set_budget(8.0)
            again.set_budget(8.0, level=2)
            again.set_budget(3.0, level=1)
            release = client.plan.planned_releases(0)[0]
            with pytest.raises(BudgetExceededError, match=r"of the budget ε = 0.1"):
                again.reserve(release, run="another")
            again.set_budget(0.3, level=0)
            again.reserve(release, run="another")
            with pytest.raises(BudgetExceededError, match="is below the spent"):
                again.set_budget(0.05, level=0)
            with pytest.raises(InputError, match="level 3: unknown; there are 3"):
                again.set_budget(0.05, level=3)
            assert SQLiteLedger(path).filter == again.filter

    @pytest.mark.parametrize("levels", [(), (1.0, 2.0), (0.05, 1.0, 5.0), (0.1, 1.0, 5.0, 8.0)])
    def test_a_ledger_must_have_exactly_the_plans_levels(self, levels):
        """A record that counted as another level in each run could spend several accounts."""
        with pytest.raises(InputError, match=r"but the plan has 0.1, 1, 5"):
            self.prepare(MemoryLedger(self.BUDGET, levels=levels))

    def test_a_durable_ledger_needs_records_that_hold_their_budgets(self, tmp_path):
        """Another seed would draw the levels anew, and no account would know."""
        budget = Guarantee(epsilon=5.0, adjacency=Adjacency.ZERO_OUT)
        ledger = SQLiteLedger.create(
            tmp_path / "a.ledger", client="client 0", budget=budget, levels=LEVELS
        )
        dataset, split = data(sizes=(12,))
        plan = plan_for(dataset, split, privacy=Privacy(records=MIX))
        with pytest.raises(InputError, match="its records must hold their budgets"):
            Client(0, plan, split.client_records(dataset)[0], ledger=ledger)

    def test_a_level_with_a_smaller_budget_than_the_plan_refuses_in_time(self):
        ledger = MemoryLedger(self.BUDGET, levels=LEVELS, level_budgets=(0.02, 1.0, 5.0))
        client, model = self.prepare(ledger)
        with pytest.raises(BudgetExceededError, match=r"of the budget ε = 0.02"):
            client.answer(Broadcast(0, model, {}))
        assert client.ledger.filter.charged.epsilon == 0

    @pytest.mark.parametrize("levels", [(1.0, 0.1), (1.0, 1.0), (0.0, 1.0)])
    def test_levels_of_a_ledger_ascend(self, levels):
        with pytest.raises(InputError, match="level"):
            MemoryLedger(self.BUDGET, levels=levels)

    def test_releases_without_levels_cost_every_level_the_same(self):
        ledger = MemoryLedger(self.BUDGET, levels=LEVELS)
        dataset, split = data(sizes=(12,))
        plan = plan_for(dataset, split, privacy=Privacy(epsilon=0.05))
        release = plan.planned_releases(0)[0]
        ledger.reserve(release, run="plain")
        costs = {state.realised.epsilon for state in ledger.filter.by_level}
        assert len(costs) == 1


def test_the_shared_model_takes_levels_too():
    dataset, split = data()
    plan = plan_for(
        dataset,
        split,
        model=Model(name="mlp", settings={"hidden": 5}),
        privacy=Privacy(records=MIX),
    )
    serial, stacked = (simulate(plan, dataset, split, engine=e) for e in ("serial", "stacked"))
    for name, value in serial.model.items():
        torch.testing.assert_close(value, stacked.model[name], rtol=1e-4, atol=1e-5)


class TestHostilePlans:
    """A plan that says other things of levels than it declares is no plan."""

    def plan(self):
        dataset, split = data(budgets=np.repeat(LEVELS, 24))
        privacy = Privacy(records=RecordBudgets(levels=LEVELS))
        return plan_for(dataset, split, privacy=privacy), dataset, split

    @pytest.mark.parametrize(
        "edit",
        [
            lambda client: client["levels"][0].update(epsilon=5.0),
            lambda client: client["levels"][0].update(budget=5.0),
            lambda client: client["levels"][0].update(units=1),
            lambda client: client.pop("levels"),
            lambda client: client["levels"].pop(),
            lambda client: client["charges"][0]["levels"].pop(),
            lambda client: client.update(units=60),
        ],
    )
    def test_edited_levels_are_refused(self, edit):
        plan, _, _ = self.plan()
        content = json.loads(plan.model_dump_json())
        Plan.model_validate(content)
        edit(content["clients"][0])
        with pytest.raises(ValueError, match=r"levels do not fit|units must be its records"):
            Plan.model_validate(content)

    def test_shares_cannot_be_changed_for_a_client(self):
        dataset, split = data()
        content = json.loads(
            plan_for(dataset, split, privacy=Privacy(records=MIX)).model_dump_json()
        )
        first, second = content["clients"][0]["levels"][:2]
        first["units"], second["units"] = first["units"] - 1, second["units"] + 1
        with pytest.raises(ValueError, match="levels do not fit"):
            Plan.model_validate(content)

    def test_a_stack_does_not_clip_at_the_largest_bound_what_was_paid_by_level(self):
        """Even if one client of the stack has no levels, against its plan."""
        plan, dataset, split = self.plan()
        local_model = LocalModel(plan)
        clients = {n: Client(n, plan, r) for n, r in enumerate(split.client_records(dataset))}
        engine = StackedEngine(local_model)
        engine.answer(clients, Broadcast(0, local_model.state(), {}))
        for client in clients.values():
            client.levels = None
        with pytest.raises(BudgetExceededError, match="was not paid for"):
            engine.answer(clients, Broadcast(1, local_model.state(), {}))
