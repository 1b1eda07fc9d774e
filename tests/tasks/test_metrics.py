"""Metrics by hand and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss, r2_score, roc_auc_score

from pacdp.tasks import Classification, Regression
from pacdp.tasks.classification import calibration_error


def random_predictions(classes, size=300, seed=0):
    random = np.random.default_rng(seed)
    scores = random.dirichlet(np.ones(classes), size)
    return scores, random.integers(0, classes, size)


@pytest.mark.parametrize("classes", [2, 5])
def test_classification(classes):
    predicted, labels = random_predictions(classes)
    found = Classification(classes).full_metrics(predicted, labels)
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
    assert calibration_error(predicted, labels) < 0.01
    assert calibration_error(predicted, np.ones_like(labels)) > 0.6


def test_regression():
    random = np.random.default_rng(2)
    labels, predicted = random.normal(size=50), random.normal(size=50)
    found = Regression().full_metrics(predicted, labels)
    assert sorted(found) == ["loss", "mean_absolute_error", "r2"]
    assert found["r2"] == pytest.approx(r2_score(labels, predicted))
    assert found["loss"] == pytest.approx(np.mean((labels - predicted) ** 2))
    assert found["mean_absolute_error"] == pytest.approx(np.mean(np.abs(labels - predicted)))
    assert Regression().baseline(labels) is None
    assert Regression().correct(predicted, labels) is None


def test_one_class_has_no_auroc():
    predicted, _ = random_predictions(2, 10)
    assert "auroc" not in Classification(2).full_metrics(predicted, np.zeros(10, int))


def test_constant_labels_have_no_r2():
    assert "r2" not in Regression().full_metrics(np.arange(3.0), np.ones(3))


def test_a_diverged_model_has_no_loss_and_the_lowest_score():
    labels = np.array([0, 1])
    lost = {
        Classification(2): np.full((2, 2), np.nan),
        Regression(): np.array([np.inf, 0.0]),
    }
    for task, predicted in lost.items():
        for metrics in (task.quick_metrics, task.full_metrics):
            assert "loss" not in metrics(predicted, labels)
    assert list(Classification(2).full_metrics(np.full((2, 2), np.nan), labels)) == ["accuracy"]
    worst = Regression().score({})
    assert worst < Regression().score({"loss": 1e30}) < Regression().score({"loss": 2.0}) == -2.0


def test_scores_are_higher_for_better_models():
    assert Classification(2).score({"accuracy": 0.5, "loss": 2.0}) == 0.5
    assert (Classification(2).score_name, Regression().score_name) == ("accuracy", "minus the loss")


def test_predictions_in_double_precision_over_any_leading_dimensions():
    outputs = torch.randn(3, 4, 5, 2)
    predicted = Classification(2).predict(outputs)
    assert predicted.dtype == np.float64
    assert predicted == pytest.approx(outputs.double().softmax(-1).numpy())
    values = Regression().predict(outputs[..., :1])
    assert values.dtype == np.float64
    assert values.shape == (3, 4, 5)
