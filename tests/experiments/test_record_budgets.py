"""Budgets of single records: no plan may ignore them, and those of public records do not count."""

from dataclasses import replace

import numpy as np
import pytest

from pacdp.errors import InputError
from pacdp.experiments import prepare_run, read_experiment
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import plan_run, read_data
from pacdp.federation.client import Client
from pacdp.methods import build_method

CHANGES = {"method": "fixed", "training.rounds": 2}


def with_budgets(dataset):
    budgets = np.where(np.arange(len(dataset.train)) % 3 == 0, 0.1, 1.0)
    return replace(dataset, train=replace(dataset.train, budgets=budgets))


@pytest.mark.parametrize("records", [None, {"levels": (0.1, 1.0), "shares": (0.5, 0.5)}])
def test_a_client_refuses_a_plan_that_ignores_its_budgets(records):
    changes = CHANGES if records is None else CHANGES | {"privacy.records": records}
    prepared = prepare_run(read_experiment("heart", profile="smoke", changes=changes))
    held = prepared.partition.client_records(prepared.dataset)[0]
    Client(0, prepared.plan, held)
    budgets = replace(held, budgets=np.full(len(held), 0.1))
    with pytest.raises(InputError, match="its records have budgets, which the plan ignores"):
        Client(0, prepared.plan, budgets)


def test_a_method_without_a_guarantee_needs_no_levels():
    experiment = read_experiment("heart", profile="smoke", changes=CHANGES)
    dataset, split = read_data(experiment.data, seed=0)
    private = with_budgets(dataset)
    split = replace(split, digest=private.train.digest)
    plan = plan_run(experiment, build_method("fedavg"), private, split, seed=0)
    Client(0, plan, split.client_records(private)[0])
    with pytest.raises(InputError, match="must list their levels, without shares"):
        plan_run(experiment, build_method("fixed"), private, split, seed=0)


def test_a_proxy_gets_the_mix_of_levels_and_no_budgets_of_its_own(tmp_path):
    for folder, first in (("private", 0), ("public", 1000)):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(("north", "south")):
            start = first + 100 * number
            rows = "".join(
                f"{n},{n % 7},{0.1 if n % 4 else 5},{n % 2}\n" for n in range(start, start + 80)
            )
            (tmp_path / folder / f"{name}.csv").write_text(f"age,visits,budget,label\n{rows}")
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nmethod = "fixed"\n[data]\nname = "private"\n[training]\nrounds = 2\n'
        'local_steps = 1\n[privacy]\nrecords = { levels = [0.1, 5] }\n[offline]\nproxy = "public"\n'
    )
    task = make_proxy_task(read_experiment(str(tmp_path / "mine.toml")))
    assert task.recipe.privacy.records.shares == pytest.approx((0.75, 0.25), abs=0.05)
    assert task.records(0)[0].train.budgets is None
    assert 0 <= task.score(5.0, 1.0, 0) <= 1
