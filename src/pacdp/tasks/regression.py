"""The regression task: a number is predicted for each record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pacdp.tasks.base import Array, Task, require_all, require_one_number
from pacdp.tasks.registry import register_task

if TYPE_CHECKING:
    from torch import Tensor

    from pacdp.clipping.losses import Loss


@register_task
@dataclass(frozen=True)
class Regression(Task):
    """Predict one number; predictions are such numbers, and the metric is the squared error.

    >>> Regression().quick_metrics(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    {'loss': 2.0}
    """

    name = "regression"
    label_dtype = np.float32
    metric = "loss"
    higher_is_better = False

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    @property
    def loss(self) -> "Loss":
        """Half the squared error."""
        from pacdp.clipping import SquaredError

        return SquaredError()

    def require_labels(self, where: str, labels: Array, lines: Sequence[int] | None = None) -> None:
        """Raise InputError if a label is not a finite number."""
        require_one_number(where, labels)
        require_all(where, np.isfinite(labels), "a finite number", lines)

    def targets(self, labels: Array) -> "Tensor":
        """Values (n, 1), as a model outputs them."""
        import torch

        return torch.from_numpy(labels.astype(np.float32))[:, None]

    def predict(self, outputs: "Tensor") -> Array:
        """Values, (..., n)."""
        values: Array = outputs.double().squeeze(-1).cpu().numpy()
        return values

    def quick_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """The mean squared error."""
        if not np.isfinite(predictions).all():
            return {}
        return {"loss": float(np.mean((predictions - labels) ** 2))}

    def full_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """Also the mean absolute error and R²."""
        metrics = self.quick_metrics(predictions, labels)
        if not metrics:
            return metrics
        metrics["mean_absolute_error"] = float(np.mean(np.abs(predictions - labels)))
        spread = float(np.sum((labels - labels.mean()) ** 2))
        if spread:
            metrics["r2"] = 1 - float(np.sum((predictions - labels) ** 2)) / spread
        return metrics

    def table_header(self) -> list[str]:
        """A single column."""
        return ["value"]

    def table_row(self, prediction: float) -> list[Any]:
        """One record's value."""
        return [f"{prediction:.6g}"]

    def to_json(self) -> int:
        """No classes: other contents would change the names of runs."""
        return 0
