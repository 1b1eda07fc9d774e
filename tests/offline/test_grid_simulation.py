"""Plans of several seeds in one program are those plans one by one."""

import numpy as np
import pytest
import torch

from pacdp.curve import Curve
from pacdp.data import Dataset, Provenance, Records, load_dataset, partition_records
from pacdp.federation import Aggregation, Model, Optimiser, Privacy, Training, simulate
from pacdp.federation.budgets import RecordBudgets
from pacdp.federation.local_model import LocalModel
from pacdp.methods import build_method
from pacdp.offline.grid_simulation import GridSimulation, can_stack_plan, score_plans
from pacdp.tasks import Classification, Regression
from tests.plans import plan_of

pytestmark = pytest.mark.usefixtures("two_threads")
DATA = load_dataset("synthetic", records=1000, features=8, clients=4)
SEEDS = (0, 5)
BUDGETS = (0.05, 0.1, 1.0, 2.0)
MIX = RecordBudgets(levels=(0.1, 1.0, 5.0), shares=(0.7, 0.2, 0.1))
RISING = Curve(family="power", coefficients=(0.8, 0.3))


def plan(seed, **changes):
    split = partition_records(DATA, "dirichlet", clients=4, seed=seed, alpha=0.5)
    parts = {
        "sizes": split.sizes_by_client,
        "shape": DATA.shape,
        "task": Classification(2),
        "method": build_method("pac-dp", {"curve": RISING}),
        "training": Training(rounds=4, local_steps=2, optimiser=Optimiser(lr=0.5)),
        "privacy": Privacy(epsilon=BUDGETS),
        "server": Aggregation(weights="inverse-variance", average_last=0.5),
        "model": Model(name="logistic", settings={"bias": 0.0}),
        "seed": seed,
    }
    return plan_of(**parts | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": build_method("fixed", {"clipping_bound": 0.3})},
        {"model": Model(name="mlp", settings={"hidden": 4.0})},
        {"training": Training(rounds=3, local_epochs=1, batch=32, optimiser=Optimiser(lr=0.2))},
        {"privacy": Privacy(epsilon=(5.0, 0.5, 2.0, 5.0), records=MIX)},
        {
            "privacy": Privacy(records=MIX),
            "model": Model(name="mlp", settings={"hidden": 4.0}),
            "training": Training(rounds=2, local_epochs=1, batch=32),
        },
    ],
)
def test_seeds_together_are_seeds_one_by_one_with_everyones_own_budget(changes):
    plans = [plan(seed, **changes) for seed in SEEDS]
    records = [
        (DATA, partition_records(DATA, "dirichlet", clients=4, seed=seed, alpha=0.5))
        for seed in SEEDS
    ]
    assert can_stack_plan(plans[0])
    together = score_plans(plans, records)
    alone = [p.task.score(simulate(p, *own).metrics) for p, own in zip(plans, records, strict=True)]
    # A record on the border may fall to either side of it by rounding.
    assert np.abs(np.subtract(together, alone)).max() <= 1.5 / len(DATA.test)


def test_a_first_model_is_where_all_of_them_start():
    still = Training(rounds=1, local_steps=1, optimiser=Optimiser(lr=1e-12))
    made = plan(0, training=still)
    first = LocalModel(made).state()
    reached = {name: value * 0 + DATA.train.features[0].mean() for name, value in first.items()}
    records = [(DATA, partition_records(DATA, "dirichlet", clients=4, seed=0, alpha=0.5))]
    (together,) = score_plans([made], records, initial=reached)
    alone = made.task.score(simulate(made, *records[0], initial=reached).metrics)
    assert together == pytest.approx(alone, abs=1.5 / len(DATA.test))


def test_methods_of_their_own_are_not_put_together():
    assert not can_stack_plan(plan(0, method=build_method("rpdp-fl"), privacy=Privacy(epsilon=1.0)))


def test_regression_in_the_grid_moves_weights_as_a_single_run_does():
    """Doubled gradients, as the grid once had, would choose F for another problem."""
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 4)).astype(np.float32)
    values = (features @ [0.3, -0.2, 0.1, 0.4] + 0.1 * random.normal(size=300)).astype(np.float32)
    parts = [Records(features=features[n], labels=values[n]) for n in np.split(np.arange(300), 2)]
    data = Dataset(
        name="line",
        train=parts[0],
        test=parts[1],
        task=Regression(),
        provenance=Provenance(source="generated", licence="public domain"),
    )
    split = partition_records(data, "iid", clients=2)
    made = plan_of(
        sizes=split.sizes_by_client,
        shape=(4,),
        task=Regression(),
        method=build_method("fixed", {"clipping_bound": 50.0}),
        training=Training(rounds=3, local_steps=2, optimiser=Optimiser(lr=0.2)),
        privacy=Privacy(epsilon=50.0),
    )
    alone = simulate(made, data, split).model
    trained = GridSimulation(
        *([[made]], [(data, split)]),
        budget_of=[0],
        bounds=np.array([50.0]),
        initial=None,
    ).train()
    for name, value in alone.items():
        found = trained[name][0, ..., 0]
        torch.testing.assert_close(found.mT if found.ndim == 2 else found, value)
