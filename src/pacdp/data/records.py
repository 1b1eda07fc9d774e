"""Records, and the data set they belong to: what every loader gives and every user takes.

Checked once, when they are made: lengths that agree, labels that exist, numbers that are finite.
Nothing here knows where the records came from or who will train on them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pacdp.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Records:
    """Features (n, ...) and labels (n,), with what is known of each record.

    Images are kept as bytes, a quarter of what floats take, and become numbers in [0, 1] where
    they are used: a published range, never a statistic. ``labels`` are class numbers, or floats
    for regression. ``clients`` says who holds a record by nature, ``units`` which records belong
    to one person (or household, or device), and ``keys`` which record of the source each one was
    made from, so that no scaling or augmentation can hide where it came from.
    """

    features: Array
    labels: Array
    clients: NDArray[np.int64] | None = None
    units: NDArray[np.int64] | None = None
    keys: Array | None = None

    def __post_init__(self) -> None:
        if self.features.ndim < 2:
            raise InputError(f"features: have shape {self.features.shape}, must be (records, ...)")
        for name in ("labels", "clients", "units", "keys"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.features):
                raise InputError(
                    f"{name}: has {len(value)} values for {len(self.features)} records, "
                    "must have one for each"
                )

    def __len__(self) -> int:
        return len(self.features)

    def take(self, index: Array) -> "Records":
        """Some of the records, in the order of ``index``.

        >>> records = Records(features=np.eye(3), labels=np.arange(3))
        >>> records.take(np.array([2, 0])).labels.tolist()
        [2, 0]
        """

        def part(values: Array | None) -> Any:
            return None if values is None else values[index]

        return Records(
            features=self.features[index],
            labels=self.labels[index],
            clients=part(self.clients),
            units=part(self.units),
            keys=part(self.keys),
        )

    def identities(self) -> Array:
        """One digest for each record of the source: equal records have equal digests.

        >>> same = Records(features=np.ones((2, 4)), labels=np.zeros(2)).identities()
        >>> bool(same[0] == same[1])
        True
        """
        return self.keys if self.keys is not None else digests(self.features)

    def tensors(self, device: str = "cpu") -> tuple["Tensor", "Tensor"]:
        """Features as float32 (bytes in [0, 1], whole numbers as tokens), and labels.

        >>> pixels = Records(features=np.full((1, 2), 255, np.uint8), labels=np.array([3]))
        >>> pixels.tensors()
        (tensor([[1., 1.]]), tensor([3]))
        """
        import torch

        features = torch.as_tensor(self.features, device=device)
        if features.dtype == torch.uint8:
            features = features.float().div_(255)
        elif features.is_floating_point():
            features = features.float()
        labels = torch.as_tensor(self.labels, device=device)
        return features, labels.float() if labels.is_floating_point() else labels.long()


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where data came from and under which terms."""

    source: str
    licence: str
    citation: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.licence})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Training and test records of one task.

    ``classes`` are the names of the labels, empty for regression; ``clients`` the names of the
    natural clients, empty where there are none; ``unit`` is what one ε protects: a record, or
    what the records' ``units`` stand for.
    """

    name: str
    train: Records
    test: Records
    classes: Sequence[str]
    clients: Sequence[str] = ()
    unit: str = "record"
    provenance: Provenance

    def __post_init__(self) -> None:
        for split, records in (("train", self.train), ("test", self.test)):
            where = f"{self.name}, {split} records"
            require_finite(where, records.features)
            require_labels(where, records.labels, len(self.classes))
            if records.features.shape[1:] != self.shape:
                raise InputError(
                    f"{where}: have shape {records.features.shape[1:]}, "
                    f"must be {self.shape} as in training"
                )
        if not len(self.train):
            raise InputError(f"{self.name}: has no training records, must have at least one")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return self.train.features.shape[1:]

    def __str__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else "regression"
        return f"{self.name}: {len(self.train)} + {len(self.test)} records {self.shape}, {kind}"


def require_finite(where: str, features: Array) -> None:
    """Refuse NaN and infinity, and say where the first one is.

    >>> require_finite("a.csv", np.array([[1.0, float("nan")]]))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv: record 0, feature 1 is nan, must be a finite number
    """
    if features.dtype.kind not in "fiu":
        raise InputError(f"{where}: features are {features.dtype}, must be numbers")
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        first, *rest = (int(i) for i in np.argwhere(~np.isfinite(features))[0])
        value, place = features[(first, *rest)], ", ".join(map(str, rest))
        raise InputError(
            f"{where}: record {first}, feature {place} is {value}, must be a finite number"
        )


def require_labels(where: str, labels: Array, classes: int) -> None:
    """Refuse labels that are no class (or, for regression, no finite number).

    >>> require_labels("a.csv", np.array([0, 2]), classes=2)
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: a.csv: label 2 of record 1, must be a whole number from 0 to 1
    """
    if labels.ndim != 1 or labels.dtype.kind not in "fiu":
        raise InputError(f"{where}: labels are {labels.dtype} {labels.shape}, must be one number")
    allowed = f"a whole number from 0 to {classes - 1}" if classes else "a finite number"
    if classes:
        good = (labels >= 0) & (labels < classes)
        good &= labels == np.floor(labels) if labels.dtype.kind == "f" else True
    else:
        good = np.isfinite(labels)
    if not good.all():
        record = int(np.argmin(good))
        raise InputError(f"{where}: label {labels[record]} of record {record}, must be {allowed}")


def digests(rows: Array) -> Array:
    """A 128-bit digest of each row, as an array of bytes.

    >>> digests(np.zeros((3, 5), np.uint8)).dtype
    dtype('V16')
    """
    rows = np.ascontiguousarray(rows)
    if rows.dtype.kind == "f":
        # What two files may disagree about is not which record it is.
        rows = rows.astype(np.float32) + np.float32(0)
    made = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    return np.frombuffer(made, dtype="V16")


def stratified(groups: Array, share: float, seed: int) -> Array:
    """A mask of about ``share`` of the records, drawn from each group by itself.

    >>> mask = stratified(np.array([0] * 10 + [1] * 20), share=0.2, seed=0)
    >>> int(mask[:10].sum()), int(mask[10:].sum())
    (2, 4)
    """
    random = np.random.default_rng(seed)
    mask = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        mask[random.permutation(members)[: round(share * len(members))]] = True
    return mask
