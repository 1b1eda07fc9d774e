"""The grid: the same numbers as single runs, kept as they come, and a curve from them."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pacdp.curve import Curve
from pacdp.curve.transfer import measure_transfer
from pacdp.data import load_dataset, load_proxy, partition_records
from pacdp.errors import DataError, InputError
from pacdp.federation import (
    Aggregation,
    BudgetSchedule,
    Model,
    Optimiser,
    Population,
    Privacy,
    Recipe,
    Training,
    make_plan,
)
from pacdp.federation.budgets import RecordBudgets
from pacdp.federation.population import pool_shares
from pacdp.methods import build_method
from pacdp.offline import Axis, Cell, Grid, Offline, fit_curve
from pacdp.offline.grid import ScoreStore, run_grid, train_in_process
from pacdp.offline.grid_simulation import can_stack_plan, score_pairs
from pacdp.reporting.figures.curve import draw_curve
from pacdp.tasks import Classification
from tests.plans import plan_of, proxy_task_of

HEART = load_dataset("heart")
SIZES = partition_records(HEART, "natural").sizes_by_client
PROXY = load_proxy("heart")
MIX = RecordBudgets(levels=(0.1, 1.0, 5.0), shares=(0.7, 0.2, 0.1))
PLAIN = Training(rounds=4, local_epochs=2, batch=16, optimiser=Optimiser(lr=0.5))
SMALL = Offline(
    budgets=Axis(low=0.05, high=5.0, count=4), bounds=Axis(low=0.05, high=5.0, count=5), seeds=2
)


def proxy_task(**changes):
    parts = {
        "proxy": PROXY,
        "sizes": SIZES,
        "training": PLAIN,
        "model": Model(name="logistic"),
        "privacy": Privacy(),
    }
    return proxy_task_of(**parts | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": Model(name="mlp", settings={"hidden": 5})},
        {"model": Model(name="logistic", settings={"bias": 0})},
        {"privacy": Privacy(adjacency="replace-one", spending=BudgetSchedule(policy="late"))},
        {
            "training": Training(
                rounds=5,
                local_steps=3,
                clients_per_round=2,
                sampling="uniform",
                cap=0.5,
                optimiser=Optimiser(name="adam", lr=0.05),
            ),
            "server": Aggregation(
                weights="inverse-variance", optimiser="momentum", average_last=0.5
            ),
        },
        {
            "privacy": Privacy(spending=BudgetSchedule(policy="replan")),
            "training": Training(
                rounds=5, local_epochs=1, clients_per_round=3, sampling="uniform", batch=50
            ),
            "server": Aggregation(weights="tempered", optimiser="adam", lr=0.1),
        },
        {"partition": "dirichlet", "settings": {"alpha": 0.5}},
        {"privacy": Privacy(records=MIX), "server": Aggregation(weights="inverse-variance")},
        {"privacy": Privacy(records=MIX), "model": Model(name="mlp", settings={"hidden": 5})},
    ],
)
def test_all_cells_together_are_all_cells_one_by_one(changes):
    made = proxy_task(**changes)
    assert can_stack_plan(made.plan(1.0, 1.0, 0))
    pairs = [(e, c) for e in (0.1, 2.0) for c in (0.1, 5.0)]
    together = score_pairs(made, pairs, [1, 3])
    alone = [[made.score(e, c, seed) for e, c in pairs] for seed in (1, 3)]
    # A record on the border may fall to either side of it by rounding.
    assert np.abs(np.subtract(together, alone)).max() <= 1.5 / len(PROXY.data.test)


def test_with_a_tenth_of_the_classes_steps_are_a_tenth_as_long():
    made = proxy_task(share=0.1)
    assert made.plan(1.0, 1.0, 0).training.optimiser.lr == pytest.approx(0.05)
    assert made.plan(1.0, 1.0, 0).training.rounds == PLAIN.rounds
    # A curve is still one for the task's own plan.
    assert made.terms == proxy_task().terms
    assert made.digest != proxy_task().digest
    adam = Training(rounds=2, local_steps=1, optimiser=Optimiser(name="adam", lr=0.5))
    assert proxy_task(share=0.1).adapt_training(adam) == adam


def test_the_proxy_has_clients_of_the_runs_own_sizes():
    made = proxy_task(sizes={"a": 900, "b": 50})
    data, split = made.records(0)
    assert split.sizes_by_client == {"a": 900, "b": 50}
    # 592 public records stand for 950, none more often than another by more than one.
    counts = np.unique(np.array([row.tobytes() for row in data.train.features]), return_counts=True)
    assert set(counts[1]) <= {1, 2}
    assert made.plan(0.5, 1.0, 0).clients[1].noise_multiplier == pytest.approx(
        plan_of(
            sizes={"a": 900, "b": 50},
            shape=(13,),
            task=Classification(2),
            method=build_method("fixed"),
            training=PLAIN,
            privacy=Privacy(epsilon=0.5),
        )
        .clients[1]
        .noise_multiplier
    )


def test_a_killed_grid_goes_on_where_it_stood(tmp_path):
    made = proxy_task()
    grid = Grid((0.1, 1.0), (0.1, 1.0, 5.0), (0, 1))
    whole = run_grid(made, grid)
    trained = []

    class KilledError(Exception):
        pass

    def killed(own, cells):
        for number, (cell, score) in enumerate(train_in_process(own, cells)):
            if number == 5:
                raise KilledError
            yield cell, score

    def counting(own, cells):
        trained.extend(cells)
        return train_in_process(own, cells)

    path = tmp_path / "scores.jsonl"
    with pytest.raises(KilledError):
        run_grid(made, grid, store=ScoreStore.open(path, made), worker=killed)
    # And the last line was being written.
    path.write_text(path.read_text() + "[0.1, 5.0, ")
    again = run_grid(made, grid, store=ScoreStore.open(path, made), worker=counting)
    assert len(trained) == len(grid.cells) - 5
    assert np.array_equal(whole.scores, again.scores)
    assert len(ScoreStore.open(path, made).scores) == len(grid.cells)


def test_scores_of_another_plan_are_refused(tmp_path):
    path = tmp_path / "scores.jsonl"
    ScoreStore.open(path, proxy_task()).add(Cell(0.1, 1.0, 0), 0.5)
    with pytest.raises(DataError, match="another plan or proxy"):
        ScoreStore.open(path, proxy_task(privacy=Privacy(delta=1e-6)))
    path.write_text(path.read_text() + "damage\n[0.1, 2.0, 0, 0.5]\n")
    with pytest.raises(DataError, match="line 3 is damaged"):
        ScoreStore.open(path, proxy_task())
    path.write_text("something else")
    with pytest.raises(DataError, match="is no file of scores"):
        ScoreStore.open(path, proxy_task())


@pytest.fixture(scope="module")
def curve():
    return fit_curve(proxy_task(), SMALL)


def test_a_curve_knows_what_it_was_made_from(curve, tmp_path):
    evidence = curve.evidence
    assert np.array(evidence.scores).shape == (2, 4, 5)
    assert evidence.proxy.sha256 == PROXY.data.train.digest
    assert evidence.plan["adjacency"] == "zero-out"
    assert tuple(row.epsilon for row in evidence.regret) == evidence.budgets
    curve.save(tmp_path / "curve.json")
    back = Curve.load(tmp_path / "curve.json")
    assert back == curve
    content = json.loads((tmp_path / "curve.json").read_text())
    content["evidence"]["scores"][0][0][0] = 0.123
    (tmp_path / "curve.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged"):
        Curve.load(tmp_path / "curve.json")


def test_regret_is_measured_on_seeds_that_the_fit_did_not_see(curve):
    row = curve.evidence.regret[1]
    made = proxy_task()
    best, ours = (
        np.mean([made.score(row.epsilon, bound, seed) for seed in (2, 3)])
        for bound in (row.best_of_grid, row.bound)
    )
    assert row.regret == pytest.approx(best - ours, abs=1e-9)
    assert row.score == pytest.approx(ours, abs=1e-9)


def plan_with(curve, **changes):
    parts = {
        "sizes": SIZES,
        "shape": (13,),
        "task": Classification(2),
        "method": build_method("pac-dp", {"curve": curve}),
        "training": PLAIN,
        "model": Model(name="logistic"),
        "privacy": Privacy(epsilon=0.5),
    }
    return plan_of(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": Privacy(adjacency="replace-one")}, "adjacency is replace-one, but was zero"),
        ({"privacy": Privacy(delta=1e-6)}, "delta is 1e-06, but was 1e-05"),
        ({"training": PLAIN.model_copy(update={"rounds": 9})}, "training.rounds is 9, but was 4"),
        ({"model": Model(name="mlp")}, "model.name is mlp, but was logistic"),
        ({"server": Aggregation(weights="size")}, "server.weights is size, but was tempered"),
    ],
)
def test_a_curve_of_another_plan_is_refused_and_says_what_differs(curve, changes, message):
    plan_with(curve)
    with pytest.raises(InputError, match=message):
        plan_with(curve, **changes)
    anyway = build_method("pac-dp", {"curve": curve, "allow_plan_mismatch": True})
    plan_with(curve, **changes, method=anyway)


def test_budgets_of_records_are_part_of_the_plan(curve):
    """In both directions: a curve for records with levels, or a plan with them."""
    natural = Population.of(HEART, partition_records(HEART, "natural"))
    with_levels = Recipe(training=PLAIN, privacy=Privacy(records=MIX))
    with pytest.raises(InputError, match=r"records is .*levels"):
        make_plan(with_levels, build_method("pac-dp", {"curve": curve}), natural)
    fitted = fit_curve(proxy_task(privacy=Privacy(records=MIX)), SMALL)
    assert fitted.evidence.plan["records"] == {"levels": [0.1, 1.0, 5.0], "percent": [70, 20, 10]}
    make_plan(with_levels, build_method("pac-dp", {"curve": fitted}), natural)
    # The same mix, but held by the records themselves.
    random = np.random.default_rng(0)
    budgets = {
        name: Counter(random.choice([0.1, 1, 5], size, p=[0.7, 0.2, 0.1]).tolist())
        for name, size in SIZES.items()
    }
    held = replace(natural, budgets=budgets)
    pooled = pool_shares(RecordBudgets(levels=(0.1, 1.0, 5.0)), held)
    refitted = fit_curve(proxy_task(privacy=Privacy(records=pooled)), SMALL)
    recipe = Recipe(training=PLAIN, privacy=Privacy(records=RecordBudgets(levels=MIX.levels)))
    make_plan(recipe, build_method("pac-dp", {"curve": refitted}), held)
    with pytest.raises(InputError, match="records is None"):
        make_plan(Recipe(training=PLAIN), build_method("pac-dp", {"curve": fitted}), natural)


def test_another_schedule_is_another_plan(curve):
    with pytest.raises(InputError, match=r"schedule\.kind is none, but was cosine"):
        plan_with(
            curve, method=build_method("pac-dp", {"curve": curve, "schedule": {"kind": "none"}})
        )


def test_bounds_are_widened_where_the_best_lies_at_their_edge():
    narrow = Offline(
        budgets=Axis(low=0.05, high=5.0, count=4), bounds=(3.0, 6.0, 12.0), seeds=2, widen=2
    )
    made = fit_curve(proxy_task(), narrow)
    assert min(made.evidence.bounds) < 1.0
    assert made.evidence.bounds[-3:] == (3.0, 6.0, 12.0)
    still = fit_curve(proxy_task(), narrow.model_copy(update={"widen": None}))
    assert still.evidence.bounds == (3.0, 6.0, 12.0)
    assert any(choice.edge for choice in still.evidence.choices)


def test_other_learning_rates_are_shown_beside():
    """Twice the rate asks for a smaller bound: it is the product that counts."""
    offline = SMALL.model_copy(update={"rates": (0.1, 2.0)})
    slow, fast = fit_curve(proxy_task(), offline).evidence.rates
    assert (slow.lr, fast.lr) == (0.1, 2.0)
    assert np.mean(np.log(slow.bounds)) > np.mean(np.log(fast.bounds))
    assert slow.product[0] == pytest.approx(0.1 * slow.bounds[0])


def test_what_a_budget_buys(curve):
    values = [curve.expected_score(e) for e in (0.05, 0.5, 5.0)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(curve.evidence.expected[0])


def test_a_curve_loses_nothing_on_its_own_proxy(curve):
    assert all(one.lost == 0 for one in measure_transfer(curve, curve))
    other = Curve(family="power", coefficients=(5.0, 0.0), domain=curve.domain)
    assert max(one.lost for one in measure_transfer(other, curve)) > 0.01
    with pytest.raises(InputError, match="holds no grid"):
        measure_transfer(curve, other)


def test_the_picture_has_both_halves(curve):
    drawn = draw_curve(curve)
    left, right = drawn.axes[:2]
    assert left.get_xlabel() == right.get_xlabel() == "budget ε"
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert any("(chosen)" in label for label in labels)
    assert any("C* ± its standard error" in label for label in labels)


@pytest.mark.parametrize(
    "wrong",
    [
        {"budgets": (1.0, 2.0, 3.0)},
        {"budgets": (1.0, 2.0, 3.0, 3.0)},
        {"bounds": (1.0, 0.5, 0.1)},
        {"bounds": (0.0, 0.5, 1.0)},
        {"bounds": {"low": 1.0, "high": 0.5, "count": 4}},
        {"seeds": 0},
        {"rule": "best"},
    ],
)
def test_a_grid_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must|greater|Input should"):
        Offline(**wrong)
