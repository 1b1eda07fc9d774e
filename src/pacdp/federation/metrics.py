"""How good a model is, on records that the server holds or that are public.

A client's own loss or accuracy would be a release. Test records of a simulation are covered by no
ε.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pacdp.data import Dataset, Partition, Records

Array = NDArray[Any]
# Records that a model looks at in one go.
CHUNK = 2048
BINS = 15


def predict(model: nn.Module, inputs: Tensor, *, classes: int) -> Array:
    """Class probabilities (n, classes), or values (n,) for regression.

    >>> predict(nn.Linear(3, 2), torch.zeros(4, 3), classes=2).shape
    (4, 2)
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [model(inputs[i : i + CHUNK]) for i in range(0, len(inputs), CHUNK)]
    finally:
        model.train(training)
    outputs = torch.cat(parts).double()
    return (outputs.softmax(1) if classes else outputs.squeeze(-1)).cpu().numpy()


def quick(predicted: Array, labels: Array, *, classes: int) -> dict[str, float]:
    """Accuracy and loss, for every round; for regression the mean squared error.

    A model whose answers are not finite has diverged; then there is no loss.

    >>> quick(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]), classes=2)["accuracy"]
    0.5
    """
    if not np.isfinite(predicted).all():
        return {"accuracy": float((predicted.argmax(1) == labels).mean())} if classes else {}
    if not classes:
        return {"loss": float(np.mean((predicted - labels) ** 2))}
    right = predicted.argmax(1) == labels
    held = np.clip(predicted[np.arange(len(labels)), labels], 1e-12, 1)
    return {"accuracy": float(right.mean()), "loss": float(-np.log(held).mean())}


def full(predicted: Array, labels: Array, *, classes: int) -> dict[str, float]:
    """All that fits the task: with F1, AUROC and calibration error for classes.

    AUROC and F1 are means over classes; the calibration error is the expected one over 15 bins of
    confidence. What is not defined (one class only) is left out.

    >>> sorted(full(np.array([0.1, 0.9]), np.array([0.0, 1.0]), classes=0))
    ['loss', 'mean_absolute_error', 'r2']
    """
    found = quick(predicted, labels, classes=classes)
    if "loss" not in found:
        return found
    if not classes:
        found["mean_absolute_error"] = float(np.mean(np.abs(predicted - labels)))
        spread = float(np.sum((labels - labels.mean()) ** 2))
        if spread:
            found["r2"] = 1 - float(np.sum((predicted - labels) ** 2)) / spread
        return found
    from sklearn.metrics import f1_score, roc_auc_score

    found["f1"] = float(f1_score(labels, predicted.argmax(1), average="macro", zero_division=0))
    if len(np.unique(labels)) == classes:
        scores = predicted[:, 1] if classes == 2 else predicted
        found["auroc"] = float(roc_auc_score(labels, scores, multi_class="ovr"))
    found["calibration_error"] = calibration_error(predicted, labels)
    return found


def calibration_error(predicted: Array, labels: Array) -> float:
    """Expected calibration error: how far confidence is from accuracy, bin by bin.

    >>> calibration_error(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    0.5
    """
    confidence = predicted.max(1)
    right = predicted.argmax(1) == labels
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    weights = np.bincount(bins, minlength=BINS) / len(labels)
    gaps = np.zeros(BINS)
    for number in np.unique(bins):
        inside = bins == number
        gaps[number] = abs(confidence[inside].mean() - right[inside].mean())
    return float(weights @ gaps)


def chance(labels: Array, *, classes: int) -> float | None:
    """The accuracy of always saying the most frequent class; None for regression.

    >>> chance(np.array([0, 0, 1]), classes=2)
    0.666...
    """
    return float(np.bincount(labels, minlength=classes).max() / len(labels)) if classes else None


def by_client(predicted: Array, dataset: Dataset, partition: Partition) -> list[float | None]:
    """The accuracy that each client sees; None for regression and where it has no test records.

    A natural client has test records of its own. For a drawn one the classes are weighted as they
    are among its training records: the simulator knows these, and no server would.
    """
    labels = dataset.test.labels
    if not dataset.classes:
        return [None] * len(partition)
    right = predicted.argmax(1) == labels
    holders = dataset.test.clients
    if partition.kind == "natural" and holders is not None:
        mine = [right[holders == number] for number in range(len(partition))]
        return [float(part.mean()) if len(part) else None for part in mine]
    kinds = len(dataset.classes)
    totals = np.bincount(labels, minlength=kinds)
    hits = np.bincount(labels, weights=right, minlength=kinds)
    rates = np.divide(hits, totals, out=np.zeros(kinds), where=totals > 0)
    counts = partition.class_counts(dataset) * (totals > 0)
    return [float(row @ rates / row.sum()) if row.sum() else None for row in counts]


def by_level(
    accuracies: Sequence[float | None],
    budgets: Sequence[float | None],
    records: Sequence[int],
) -> Mapping[float, float]:
    """The accuracy for the records of those who hold each budget: who pays for privacy.

    >>> by_level([0.5, 0.7, 0.8], [0.1, 0.1, 1.0], records=[30, 10, 5])
    {0.1: 0.55, 1.0: 0.8}
    """
    held: dict[float, list[tuple[float, int]]] = {}
    for accuracy, budget, size in zip(accuracies, budgets, records, strict=True):
        if accuracy is not None and budget is not None:
            held.setdefault(budget, []).append((accuracy, size))
    return {
        budget: round(
            sum(accuracy * size for accuracy, size in held[budget])
            / sum(size for _, size in held[budget]),
            12,
        )
        for budget in sorted(held)
    }


def evaluate(model: nn.Module, records: Records, *, classes: int, device: str) -> dict[str, float]:
    """All metrics of a model on records."""
    inputs, _ = records.tensors(device)
    return full(predict(model, inputs, classes=classes), records.labels, classes=classes)
