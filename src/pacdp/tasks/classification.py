"""The classification task: each record belongs to one of several classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pacdp.errors import InputError
from pacdp.tasks.base import Array, Task, require_all, require_one_number
from pacdp.tasks.registry import register_task

if TYPE_CHECKING:
    from torch import Tensor

    from pacdp.clipping.losses import Loss

# Bins of confidence for the calibration error.
BINS = 15


@register_task
@dataclass(frozen=True)
class Classification(Task):
    """Predict one of several classes, numbered from 0; predictions are probabilities.

    >>> Classification.named(["no", "yes"]) == Classification(2)
    True
    >>> print(Classification(10))
    10 classes
    """

    name = "classification"
    label_dtype = np.int64
    metric = "accuracy"
    higher_is_better = True

    classes: int
    names: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def named(cls, names: Sequence[str]) -> "Classification":
        """Classes with these names."""
        return cls(len(names), tuple(names))

    @property
    def outputs(self) -> int:
        """One for each class."""
        if self.classes < 2:
            raise InputError(f"classes = {self.classes}: must be at least 2")
        return self.classes

    @property
    def loss(self) -> "Loss":
        """The cross-entropy of the softmax."""
        from pacdp.clipping import CrossEntropy

        return CrossEntropy()

    def require_labels(self, where: str, labels: Array, lines: Sequence[int] | None = None) -> None:
        """Raise InputError if a label is not the number of a class.

        >>> Classification(2).require_labels("a.csv", np.array([0, 2]))
        Traceback (most recent call last):
        ...
        pacdp.errors.InputError: a.csv, record 1: label must be a whole number from 0 to 1
        """
        require_one_number(where, labels)
        valid = (labels >= 0) & (labels < self.classes)
        if labels.dtype.kind == "f":
            valid &= labels == np.floor(labels)
        require_all(where, valid, f"a whole number from 0 to {self.classes - 1}", lines)

    def targets(self, labels: Array) -> "Tensor":
        """Class numbers, (n,)."""
        import torch

        return torch.from_numpy(labels.astype(np.int64))

    def predict(self, outputs: "Tensor") -> Array:
        """Probabilities, (..., n, classes)."""
        probabilities: Array = outputs.double().softmax(-1).cpu().numpy()
        return probabilities

    def quick_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """Accuracy and cross-entropy.

        >>> Classification(2).quick_metrics(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
        {'accuracy': 0.5, 'loss': 0.510...}
        """
        metrics = {"accuracy": float(self.correct(predictions, labels).mean())}
        if np.isfinite(predictions).all():
            likelihood = np.clip(predictions[np.arange(len(labels)), labels], 1e-12, 1)
            metrics["loss"] = float(-np.log(likelihood).mean())
        return metrics

    def full_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """Also F1 and AUROC, both macro-averaged, and the expected calibration error."""
        metrics = self.quick_metrics(predictions, labels)
        if "loss" not in metrics:
            return metrics
        from sklearn.metrics import f1_score, roc_auc_score

        decisions = predictions.argmax(1)
        metrics["f1"] = float(f1_score(labels, decisions, average="macro", zero_division=0))
        if len(np.unique(labels)) == self.classes:
            scores = predictions[:, 1] if self.classes == 2 else predictions
            metrics["auroc"] = float(roc_auc_score(labels, scores, multi_class="ovr"))
        metrics["calibration_error"] = calibration_error(predictions, labels)
        return metrics

    def baseline(self, labels: Array) -> float:
        """The accuracy of always predicting the most frequent class.

        >>> Classification(2).baseline(np.array([0, 0, 1, 0]))
        0.75
        """
        return float(np.bincount(labels, minlength=self.classes).max() / len(labels))

    def correct(self, predictions: Array, labels: Array) -> Array:
        """Whether the most probable class is the right one."""
        correct: Array = predictions.argmax(1) == labels
        return correct

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by default their numbers."""
        return self.names or tuple(map(str, range(self.classes)))

    def strata(self, labels: Array) -> NDArray[np.int64]:
        """The class of each record."""
        return labels.astype(np.int64)

    def table_header(self) -> list[str]:
        """The predicted class and the probability of each class."""
        return ["class", *(f"probability_{number}" for number in range(self.classes))]

    def table_row(self, prediction: Array) -> list[Any]:
        """One record's predicted class and probabilities."""
        return [int(prediction.argmax()), *(f"{value:.6g}" for value in prediction)]

    def to_json(self) -> int:
        """The number of classes alone: other contents would change the names of runs."""
        return self.classes

    def __str__(self) -> str:
        return f"{self.classes} classes"


def calibration_error(predictions: Array, labels: Array) -> float:
    """Expected calibration error: the gap between confidence and accuracy, averaged over bins.

    >>> calibration_error(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    0.5
    """
    confidence = predictions.max(1)
    correct = predictions.argmax(1) == labels
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    weights = np.bincount(bins, minlength=BINS) / len(labels)
    gaps = np.zeros(BINS)
    for number in np.unique(bins):
        inside = bins == number
        gaps[number] = abs(confidence[inside].mean() - correct[inside].mean())
    return float(weights @ gaps)
