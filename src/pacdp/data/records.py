"""Records and data sets, the types that every loader returns.

Both are validated on construction: lengths must agree, labels must exist and numbers must be
finite. Records may be private, so an error names the record and what is allowed, but never shows a
value.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pacdp.data.digests import digest_rows
from pacdp.errors import InputError
from pacdp.tasks import Task
from pacdp.validation import describe_type, locate_record

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Records:
    """Features (n, ...) and labels (n,), with optional metadata for each record.

    Images are stored as bytes and become numbers in [0, 1] in :meth:`inputs`; the range is fixed
    and not computed from the records. ``labels`` are defined by the task of the data set: class
    numbers, or floats for regression. ``clients`` is the number of the client that holds a record
    in the source, ``units`` groups the records of one person (or household, or device), and
    ``keys`` identifies the source record that each one was derived from, so that scaling or
    augmentation cannot hide its origin. ``budgets`` are the ε of single records, where they have
    budgets of their own; all records of a unit have the same.
    """

    features: Array
    labels: Array
    clients: NDArray[np.int64] | None = None
    units: NDArray[np.int64] | None = None
    keys: Array | None = None
    budgets: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.features.ndim < 2:
            raise InputError(f"features: have shape {self.features.shape}, must be (records, ...)")
        for name in ("labels", "clients", "units", "keys", "budgets"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.features):
                raise InputError(
                    f"{name}: has {len(value)} values for {len(self.features)} records, "
                    "must have one for each"
                )

    def __len__(self) -> int:
        return len(self.features)

    def take(self, index: Array) -> "Records":
        """Return the records at ``index`` (positions or a mask), in that order.

        >>> records = Records(features=np.eye(3), labels=np.arange(3))
        >>> records.take(np.array([2, 0])).labels.tolist()
        [2, 0]
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{n: array[index] for n, array in arrays.items() if array is not None}
        )

    def unit_numbers(self) -> Array:
        """Return the number of each record's unit; without units, each record is its own."""
        return np.arange(len(self)) if self.units is None else self.units

    def group_by_unit(self) -> tuple[Array, Array]:
        """Return the first record of each unit, and the position of each record's unit there.

        >>> pair = Records(features=np.eye(3), labels=np.zeros(3), units=np.array([7, 5, 7]))
        >>> [array.tolist() for array in pair.group_by_unit()]
        [[1, 0], [1, 0, 1]]
        """
        return np.unique(self.unit_numbers(), return_index=True, return_inverse=True)[1:]

    def identities(self) -> Array:
        """Return a digest for each record; records with the same source have equal digests.

        This is the digest of the source record where it is known, else that of the features.

        >>> same = Records(features=np.ones((2, 4)), labels=np.zeros(2)).identities()
        >>> bool(same[0] == same[1])
        True
        """
        return self.keys if self.keys is not None else digest_rows(self.features)

    def unit_budgets(self) -> NDArray[np.float64] | None:
        """Return the ε of each unit, in the order of the units' numbers; None without budgets.

        >>> records = Records(
        ...     features=np.eye(3), labels=np.zeros(3), units=np.array([5, 2, 5]),
        ...     budgets=np.array([1.0, 0.1, 1.0]),
        ... )
        >>> records.unit_budgets().tolist()
        [0.1, 1.0]
        """
        if self.budgets is None or self.units is None:
            return self.budgets
        return require_budgets("records", self.budgets, self.units)[self.group_by_unit()[0]]

    @cached_property
    def digest(self) -> str:
        """A digest of the records' identities, labels, units and budgets.

        >>> len(Records(features=np.ones((2, 4)), labels=np.zeros(2)).digest)
        64
        """
        total = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        total.update(self.identities().tobytes())
        if self.units is not None:
            total.update(np.ascontiguousarray(self.units).data)
        if self.budgets is not None:
            # The word distinguishes them from units of the same bytes.
            total.update(b"budgets" + self.budgets.astype(np.float64).tobytes())
        return total.hexdigest()

    def inputs(self, device: str = "cpu") -> "Tensor":
        """Return the features as a model's inputs.

        Bytes become float32 in [0, 1], other integers are tokens (int64).

        >>> Records(features=np.full((1, 2), 255, np.uint8), labels=np.array([3])).inputs()
        tensor([[1., 1.]])
        """
        import torch

        # Always a copy, so that in-place operations on a tensor cannot change the records.
        kind = self.features.dtype.kind
        exact = np.uint8 if self.features.dtype == np.uint8 else np.int64
        features = torch.from_numpy(self.features.astype(np.float32 if kind == "f" else exact))
        features = features.to(device)
        return features.float().div_(255) if features.dtype == torch.uint8 else features

    def tensors(self, task: Task, device: str = "cpu") -> tuple["Tensor", "Tensor"]:
        """Return a model's inputs and the task's targets.

        >>> from pacdp.tasks import Classification
        >>> pixels = Records(features=np.full((1, 2), 255, np.uint8), labels=np.array([3]))
        >>> pixels.tensors(Classification(10))
        (tensor([[1., 1.]]), tensor([3]))
        """
        return self.inputs(device), task.targets(self.labels).to(device)

    def empty_tensors(self, task: Task, device: str = "cpu") -> tuple["Tensor", "Tensor"]:
        """Return tensors with the shapes and types of :meth:`tensors` for zero records.

        >>> from pacdp.tasks import Classification
        >>> pixels = Records(features=np.full((1, 2), 255, np.uint8), labels=np.array([3]))
        >>> [tensor.shape for tensor in pixels.empty_tensors(Classification(10))]
        [torch.Size([0, 2]), torch.Size([0])]
        """
        return self.take(np.arange(0)).tensors(task, device)


def concatenate_records(first: Records, *others: Records) -> Records:
    """Concatenate records of the same shape.

    Identities and budgets are kept, clients and units are not: their numbers have a meaning within
    one data set only.

    >>> records = Records(features=np.zeros((2, 3)), labels=np.zeros(2))
    >>> len(concatenate_records(records, records))
    4
    """
    parts = [first, *others]
    budgets = [part.budgets for part in parts if part.budgets is not None]
    if budgets and len(budgets) < len(parts):
        raise InputError("budgets: must be given for all of the records or for none")
    return Records(
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        keys=np.concatenate([part.identities() for part in parts]),
        budgets=np.concatenate(budgets) if budgets else None,
    )


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The source of a data set, its licence and how to cite it."""

    source: str
    licence: str
    citation: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.licence})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training and test records of one task.

    ``task`` defines what the labels mean. ``clients`` are the names of the natural clients, if
    there are any. ``unit`` is the unit of privacy: a record, or what the records' ``units`` stand
    for.
    """

    name: str
    train: Records
    test: Records
    task: Task
    clients: Sequence[str] = ()
    unit: str = "record"
    provenance: Provenance

    def __post_init__(self) -> None:
        for split, records in (("train", self.train), ("test", self.test)):
            where = f"{self.name}, {split} records"
            require_finite(where, records.features)
            self.task.require_labels(where, records.labels)
            if records.budgets is not None:
                require_budgets(where, records.budgets, records.units)
            if records.features.shape[1:] != self.shape:
                raise InputError(
                    f"{where}: have shape {records.features.shape[1:]}, "
                    f"must be {self.shape} as in training"
                )
        if not len(self.train):
            raise InputError(f"{self.name}: has no training records, must have at least one")
        self._check_clients()
        self._check_units()

    def _check_clients(self) -> None:
        if len(set(self.clients)) != len(self.clients):
            raise InputError(f"{self.name}: two clients have the same name, must be different")
        for records in (self.train, self.test):
            holders = records.clients
            if holders is not None and not np.isin(holders, range(len(self.clients))).all():
                raise InputError(
                    f"{self.name}: a record is held by a client without a name; clients "
                    f"must be from 0 to {len(self.clients) - 1}, as many as there are names"
                )

    def _check_units(self) -> None:
        units, holders = self.train.units, self.train.clients
        if (units is None) != (self.unit == "record"):
            raise InputError(
                f"{self.name}: unit = {self.unit!r}, but its records have "
                f"{'no' if units is None else 'their'} units; must agree"
            )
        if units is None or holders is None:
            return
        pairs = np.unique(np.stack([units, holders]), axis=1)
        if len(pairs[0]) != len(np.unique(units)):
            raise InputError(f"{self.name}: a {self.unit} is held by two clients, must be by one")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return self.train.features.shape[1:]

    def map_records(self, transform: Callable[[Records], Records], **changes: Any) -> "Dataset":
        """Apply a function to the training and the test records; ``changes`` are other fields."""
        return replace(self, train=transform(self.train), test=transform(self.test), **changes)

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.train)} + {len(self.test)} records {self.shape}, {self.task}"
        )


def split_dataset(records: Records, test: Array, **description: Any) -> Dataset:
    """Make a data set of records, of which the mask ``test`` selects the test records.

    >>> from pacdp.tasks import Classification
    >>> records = Records(features=np.eye(4), labels=np.zeros(4, np.int64))
    >>> nobody = Provenance(source="an example", licence="none")
    >>> mask = np.array([True, False, False, False])
    >>> print(split_dataset(records, mask, name="toy", task=Classification(2), provenance=nobody))
    toy: 3 + 1 records (4,), 2 classes
    """
    return Dataset(train=records.take(~test), test=records.take(test), **description)


def require_finite(where: str, features: Array) -> None:
    """Raise InputError that locates the first value that is not a finite float32.

    >>> require_finite("a.csv", np.array([[1.0, float("nan")]]))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv, record 0: feature 1 must be a finite number
    """
    if features.dtype.kind not in "fiu":
        raise InputError(f"{where}: features are {describe_type(features)}, must be numbers")
    if features.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(features.astype(np.float32, copy=False))
    if not finite.all():
        first, *rest = (int(i) for i in np.argwhere(~finite)[0])
        place = ", ".join(map(str, rest))
        raise InputError(f"{where}, record {first}: feature {place} must be a finite number")


def require_budgets(
    where: str, budgets: Array, units: Array | None = None, lines: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Return budgets as float64, or raise InputError that locates the first that is not allowed.

    Budgets are finite numbers > 0, and the same for all records of a unit. Single precision is
    refused, because budgets are compared with levels such as 0.1, which is another number there.

    >>> require_budgets("a.csv", np.array([0.1, 1.0]), np.array([7, 7]))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv, record 1: budget must be the same for all records of a unit
    """
    if budgets.ndim != 1 or not (budgets.dtype.kind in "iu" or budgets.dtype == np.float64):
        raise InputError(
            f"{where}: budgets are {describe_type(budgets)} of shape {budgets.shape}, "
            "must be float64 or whole numbers, one for each record"
        )
    wrong = ~(np.isfinite(budgets) & (budgets > 0))
    allowed = "a finite number > 0"
    if units is not None and not wrong.any():
        _, first, unit = np.unique(units, return_index=True, return_inverse=True)
        wrong, allowed = budgets[first][unit] != budgets, "the same for all records of a unit"
    if wrong.any():
        place = locate_record(where, int(wrong.argmax()), lines)
        raise InputError(f"{place}: budget must be {allowed}")
    return budgets.astype(np.float64)


def make_generator(name: str, seed: int) -> np.random.Generator:
    """Make a random generator after checking that the seed is a whole number >= 0.

    >>> int(make_generator("seed", 1).integers(10)) == int(make_generator("seed", 1).integers(10))
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"{name} = {seed!r}: must be a whole number >= 0")
    return np.random.default_rng(seed)


def draw_stratified(groups: Array, share: float, seed: int) -> Array:
    """Draw a mask that selects about ``share`` of the records of each group.

    >>> mask = draw_stratified(np.array([0] * 10 + [1] * 20), share=0.2, seed=0)
    >>> int(mask[:10].sum()), int(mask[10:].sum())
    (2, 4)
    """
    make_generator("split", seed)
    mask = np.zeros(len(groups), dtype=bool)
    for number, group in enumerate(np.unique(groups)):
        members = np.flatnonzero(groups == group)
        # Each group has its own random stream, so that it does not depend on the other groups.
        drawn = np.random.default_rng([seed, number]).permutation(members)
        mask[drawn[: round(share * len(members))]] = True
    return mask
