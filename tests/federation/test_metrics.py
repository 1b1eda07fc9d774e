"""Metrics by hand and against scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss, r2_score, roc_auc_score

from pacdp.data import load_dataset, partition_records
from pacdp.errors import InputError
from pacdp.federation import Privacy, Training, make_plan, metrics, simulate
from pacdp.federation.configuration import HotStart, Model
from pacdp.federation.hot_start import hot_start
from pacdp.federation.local_model import Workbench
from pacdp.methods import method


def answers(classes, size=300, seed=0):
    random = np.random.default_rng(seed)
    scores = random.dirichlet(np.ones(classes), size)
    return scores, random.integers(0, classes, size)


@pytest.mark.parametrize("classes", [2, 5])
def test_classification(classes):
    predicted, labels = answers(classes)
    found = metrics.full(predicted, labels, classes=classes)
    assert found["accuracy"] == pytest.approx((predicted.argmax(1) == labels).mean())
    assert found["loss"] == pytest.approx(log_loss(labels, predicted))
    assert found["f1"] == pytest.approx(f1_score(labels, predicted.argmax(1), average="macro"))
    scores = predicted[:, 1] if classes == 2 else predicted
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr"))


def test_a_calibrated_model_has_no_calibration_error():
    random = np.random.default_rng(1)
    sure = random.uniform(0.5, 1, 200_000)
    labels = (random.uniform(size=len(sure)) > sure).astype(int)
    predicted = np.stack([sure, 1 - sure], axis=1)
    assert metrics.calibration_error(predicted, labels) < 0.01
    assert metrics.calibration_error(predicted, np.ones_like(labels)) > 0.6


def test_regression():
    random = np.random.default_rng(2)
    labels, predicted = random.normal(size=50), random.normal(size=50)
    found = metrics.full(predicted, labels, classes=0)
    assert found["r2"] == pytest.approx(r2_score(labels, predicted))
    assert found["loss"] == pytest.approx(np.mean((labels - predicted) ** 2))
    assert metrics.chance(labels, classes=0) is None


def test_one_class_has_no_auroc():
    predicted, _ = answers(2, 10)
    assert "auroc" not in metrics.full(predicted, np.zeros(10, int), classes=2)


def test_what_clients_see():
    heart = load_dataset("heart")
    hospitals = partition_records(heart, "natural")
    predicted = np.eye(2)[np.zeros(len(heart.test), int)]
    seen = metrics.by_client(predicted, heart, hospitals)
    for number, accuracy in enumerate(seen):
        mine = heart.test.labels[heart.test.clients == number]
        assert accuracy == pytest.approx((mine == 0).mean())
    digits = load_dataset("digits")
    split = partition_records(digits, "shards", clients=5)
    only_three = np.eye(10)[np.full(len(digits.test), 3)]
    shares = split.class_counts(digits)[:, 3] / split.sizes
    assert metrics.by_client(only_three, digits, split) == pytest.approx(shares.tolist())


def test_hot_start_says_how_good_it_is_before_any_private_record():
    data = load_dataset("heart")
    hospitals = partition_records(data, "natural")
    plan = make_plan(
        sizes=hospitals.named_sizes,
        shape=data.shape,
        classes=2,
        method=method("fixed"),
        training=Training(rounds=1, local_steps=1),
        privacy=Privacy(epsilon=1.0),
        model=Model(name="mlp"),
    )
    proxy = load_dataset("synthetic", records=500, features=13, seed=1)
    states = [hot_start(Workbench(plan), proxy, HotStart(epochs=20, lr=0.01), seed=5) for _ in "ab"]
    assert all(np.array_equal(states[0][n], states[1][n]) for n in states[0])
    bench = Workbench(plan)
    bench.load(states[0])
    assert metrics.evaluate(bench.model, proxy.test, classes=2, device="cpu")["accuracy"] > 0.9
    result = simulate(plan, data, hospitals, initial=states[0])
    assert result.metrics["accuracy"] is not None
    with pytest.raises(InputError, match="must have"):
        hot_start(bench, load_dataset("breast-cancer"), HotStart(), seed=0)


def test_test_records_move_nothing_but_the_scores():
    """No round is picked and nothing is stopped by what they say."""
    data = load_dataset("heart")
    hospitals = partition_records(data, "natural")
    plan = make_plan(
        sizes=hospitals.named_sizes,
        shape=data.shape,
        classes=2,
        method=method("fixed"),
        training=Training(rounds=6, local_steps=1),
        privacy=Privacy(epsilon=0.05),
    )
    wrong = replace(data, test=replace(data.test, labels=1 - data.test.labels))
    one, other = (simulate(plan, part, hospitals) for part in (data, wrong))
    assert one.metrics["accuracy"] != other.metrics["accuracy"]
    assert len(one.history) == len(other.history) == 6
    assert all(np.array_equal(one.model[name], other.model[name]) for name in one.model)
    # What is returned is the last model, however good an earlier one looked.
    assert one.metrics["accuracy"] == one.history[-1]["accuracy"]
