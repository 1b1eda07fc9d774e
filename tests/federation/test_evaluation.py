"""The accuracy of clients, warm starts, and what test records may influence."""

from dataclasses import replace

import numpy as np
import pytest

from pacdp.data import load_dataset, partition_records
from pacdp.errors import InputError
from pacdp.federation import Privacy, Training, simulate
from pacdp.federation.configuration import Model, WarmStart
from pacdp.federation.evaluation import accuracy_by_client, evaluate
from pacdp.federation.local_model import LocalModel
from pacdp.federation.warm_start import train_warm_start
from tests.plans import plan_for

HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")


def test_what_clients_see():
    predicted = np.eye(2)[np.zeros(len(HEART.test), int)]
    seen = accuracy_by_client(predicted, HEART, HOSPITALS)
    for number, accuracy in enumerate(seen):
        mine = HEART.test.labels[HEART.test.clients == number]
        assert accuracy == pytest.approx((mine == 0).mean())
    digits = load_dataset("digits")
    split = partition_records(digits, "shards", clients=5)
    only_three = np.eye(10)[np.full(len(digits.test), 3)]
    shares = split.class_counts(digits)[:, 3] / split.sizes
    assert accuracy_by_client(only_three, digits, split) == pytest.approx(shares.tolist())


def test_the_warm_start_is_evaluated_before_any_private_record_is_read():
    plan = plan_for(
        HEART,
        HOSPITALS,
        training=Training(rounds=1, local_steps=1),
        privacy=Privacy(epsilon=1.0),
        model=Model(name="mlp"),
    )
    proxy = load_dataset("synthetic", records=500, features=13, seed=1)
    states = [
        train_warm_start(LocalModel(plan), proxy, WarmStart(epochs=20, lr=0.01), seed=5)
        for _ in "ab"
    ]
    assert all(np.array_equal(states[0][n], states[1][n]) for n in states[0])
    local_model = LocalModel(plan)
    local_model.load(states[0])
    assert evaluate(local_model.model, proxy.test, proxy.task)["accuracy"] > 0.9
    result = simulate(plan, HEART, HOSPITALS, initial=states[0])
    assert result.metrics["accuracy"] is not None
    with pytest.raises(InputError, match="must have"):
        train_warm_start(local_model, load_dataset("breast-cancer"), WarmStart(), seed=0)


def test_test_records_move_nothing_but_the_scores():
    """No round is picked and nothing is stopped by what they say."""
    plan = plan_for(
        HEART,
        HOSPITALS,
        training=Training(rounds=6, local_steps=1),
        privacy=Privacy(epsilon=0.05),
    )
    wrong = replace(HEART, test=replace(HEART.test, labels=1 - HEART.test.labels))
    one, other = (simulate(plan, part, HOSPITALS) for part in (HEART, wrong))
    assert one.metrics["accuracy"] != other.metrics["accuracy"]
    assert len(one.history) == len(other.history) == 6
    assert all(np.array_equal(one.model[name], other.model[name]) for name in one.model)
    # What is returned is the last model, however good an earlier one looked.
    assert one.metrics["accuracy"] == one.history[-1].metrics["accuracy"]
