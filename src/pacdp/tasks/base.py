"""The interface of a task.

Torch is imported only where it is needed: data sets have a task, and are read without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pacdp.errors import InputError
from pacdp.validation import locate_record, require_column

if TYPE_CHECKING:
    from torch import Tensor

    from pacdp.clipping.losses import Loss

Array = NDArray[Any]
# The score of a model without a finite loss: lower than any that a float32 model can reach.
_DIVERGED = -float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Task(ABC):
    """What a model is trained for.

    A task is a frozen dataclass of plain values. Its fields are stored in the plan, except those
    with ``compare=False``; two tasks are the same if the stored fields are equal. ``labels`` are
    always those of :class:`~pacdp.data.Records`, ``predictions`` what :meth:`predict` returned.
    """

    name: ClassVar[str]
    """The name under which the task is registered and stored."""
    label_dtype: ClassVar[type[np.generic]]
    """The type of the labels in memory."""
    metric: ClassVar[str]
    """The headline metric, one of those in :meth:`quick_metrics`."""
    higher_is_better: ClassVar[bool]
    """Whether a larger value of the headline metric is a better one."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of the model."""

    @property
    @abstractmethod
    def loss(self) -> "Loss":
        """The loss for training: one value for each example."""

    @abstractmethod
    def require_labels(self, where: str, labels: Array, lines: Sequence[int] | None = None) -> None:
        """Raise InputError if a label is not allowed; messages never show a label.

        ``lines`` are the line numbers of the records, if they were read from a text file.
        """

    @abstractmethod
    def targets(self, labels: Array) -> "Tensor":
        """The labels as a tensor in the shape and type that the loss takes."""

    def synthetic_targets(self, size: int) -> "Tensor":
        """Valid targets that come from no record, for checks and timing."""
        return self.targets(np.zeros(size, self.label_dtype))

    @abstractmethod
    def predict(self, outputs: "Tensor") -> Array:
        """Predictions from a model's outputs (..., examples, outputs), in double precision."""

    @abstractmethod
    def quick_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """The metrics of every round. A model that has diverged has no ``loss``."""

    @abstractmethod
    def full_metrics(self, predictions: Array, labels: Array) -> dict[str, float]:
        """All metrics of a trained model. A metric that is undefined for the labels is left out."""

    @property
    def score_name(self) -> str:
        """What :meth:`score` returns."""
        return self.metric if self.higher_is_better else f"minus the {self.metric}"

    def score(self, metrics: Mapping[str, float]) -> float:
        """A single number by which models are compared, where higher is better."""
        if self.metric not in metrics:
            return _DIVERGED
        return metrics[self.metric] if self.higher_is_better else -metrics[self.metric]

    def baseline(self, labels: Array) -> float | None:
        """The headline metric of the best constant prediction; None where that is undefined."""
        return None

    def correct(self, predictions: Array, labels: Array) -> Array | None:
        """How far each prediction is correct, from 0 to 1; None where that is undefined."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; empty for a task without classes."""
        return ()

    @property
    def stratum_count(self) -> int:
        """The number of strata that :meth:`strata` distinguishes."""
        return max(len(self.class_names), 1)

    def strata(self, labels: Array) -> NDArray[np.int64]:
        """The class of each record, for stratified splits; 0 for a task without classes."""
        return np.zeros(len(labels), np.int64)

    @abstractmethod
    def table_header(self) -> list[str]:
        """The column names of a table of predictions."""

    @abstractmethod
    def table_row(self, prediction: Any) -> list[Any]:
        """One prediction as a row of that table."""

    def to_json(self) -> Any:
        """The task as it is stored in a plan; :func:`~pacdp.tasks.load_task` reads it."""
        stored = {field.name: getattr(self, field.name) for field in fields(self) if field.compare}
        return {"name": self.name, **stored}

    def __str__(self) -> str:
        return self.name


def require_one_number(where: str, labels: Array) -> None:
    """Raise InputError if the labels are not one number for each record.

    >>> require_one_number("a.csv", np.array(["yes", "no"]))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv: labels are text of shape (2,), must be one number for each ...
    """
    require_column(f"{where}: labels", labels, "fiu", "one number for each record")


def require_all(where: str, valid: Array, allowed: str, lines: Sequence[int] | None = None) -> None:
    """Raise InputError that locates the first invalid label and says what is allowed.

    >>> require_all("a.csv", np.array([True, False]), "a finite number")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv, record 1: label must be a finite number
    """
    if not valid.all():
        place = locate_record(where, int(np.argmin(valid)), lines)
        raise InputError(f"{place}: label must be {allowed}")
