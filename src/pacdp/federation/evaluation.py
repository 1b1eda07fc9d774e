"""Evaluation on public or server-held records.

A client's own loss or accuracy would be a release. The test records of a simulation are not covered
by any ε.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pacdp.data import Dataset, Partition, Records
from pacdp.tasks import Task

Array = NDArray[Any]
# Records in one forward pass.
CHUNK = 2048


def predict(model: nn.Module, inputs: Tensor, task: Task) -> Array:
    """Return the model's predictions, such as class probabilities.

    >>> from pacdp.tasks import Classification
    >>> predict(nn.Linear(3, 2), torch.zeros(4, 3), Classification(2)).shape
    (4, 2)
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [model(inputs[i : i + CHUNK]) for i in range(0, len(inputs), CHUNK)]
    finally:
        model.train(training)
    return task.predict(torch.cat(parts))


def evaluate(
    model: nn.Module, records: Records, task: Task, *, device: str = "cpu"
) -> dict[str, float]:
    """Return all metrics of a model on records."""
    return task.full_metrics(predict(model, records.inputs(device), task), records.labels)


def accuracy_by_client(
    predictions: Array, dataset: Dataset, partition: Partition
) -> list[float | None]:
    """Return the accuracy for each client; None where undefined or without test records.

    A natural client has test records of its own. For any other client, the accuracy on each class
    is weighted by the classes of its training records, which a simulation knows and no server does.
    """
    task, labels = dataset.task, dataset.test.labels
    correct = task.correct(predictions, labels)
    if correct is None:
        return [None] * len(partition)
    holders = dataset.test.clients
    if partition.kind == "natural" and holders is not None:
        parts = [correct[holders == number] for number in range(len(partition))]
        return [float(part.mean()) if len(part) else None for part in parts]
    groups, kinds = task.strata(labels), task.stratum_count
    totals = np.bincount(groups, minlength=kinds)
    hits = np.bincount(groups, weights=correct, minlength=kinds)
    rates = np.divide(hits, totals, out=np.zeros(kinds), where=totals > 0)
    counts = partition.class_counts(dataset) * (totals > 0)
    return [float(row @ rates / row.sum()) if row.sum() else None for row in counts]


def accuracy_by_level(
    predictions: Array, dataset: Dataset, levels: Sequence[float]
) -> dict[float, float]:
    """Return the accuracy on the test records of each budget level; empty if they have none."""
    correct, budgets = dataset.task.correct(predictions, dataset.test.labels), dataset.test.budgets
    if correct is None or budgets is None:
        return {}
    parts = {level: correct[budgets == level] for level in levels}
    return {level: float(part.mean()) for level, part in parts.items() if len(part)}


def accuracy_by_budget(
    accuracies: Sequence[float | None],
    budgets: Sequence[float | None],
    records: Sequence[int],
) -> Mapping[float, float]:
    """Return the mean accuracy of the clients with each budget, weighted by their records.

    >>> accuracy_by_budget([0.5, 0.7, 0.8], [0.1, 0.1, 1.0], records=[30, 10, 5])
    {0.1: 0.55, 1.0: 0.8}
    """
    groups: dict[float, list[tuple[float, int]]] = {}
    for accuracy, budget, size in zip(accuracies, budgets, records, strict=True):
        if accuracy is not None and budget is not None:
            groups.setdefault(budget, []).append((accuracy, size))
    return {
        budget: round(
            sum(accuracy * size for accuracy, size in groups[budget])
            / sum(size for _, size in groups[budget]),
            12,
        )
        for budget in sorted(groups)
    }
