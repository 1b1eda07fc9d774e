"""Partitions: which client holds which records, as in the source data or drawn at random.

Every record is held by exactly one client, and no client is empty. The records of a unit always
stay together. A partition is saved with a run and can be loaded again.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pacdp.data.records import Array, Dataset, Records, make_generator
from pacdp.errors import DataError, InputError
from pacdp.validation import refuse_unknown, require_count, require_member, require_positive_number

Generator = np.random.Generator
Indices = list[NDArray[np.int64]]
# A draw that leaves a client without records is repeated up to this number of times.
ATTEMPTS = 100


@dataclass(frozen=True, eq=False, kw_only=True)
class Partition:
    """The indices of each client's training records in the data set."""

    data: str
    kind: str
    settings: Mapping[str, Any]
    seed: int
    clients: tuple[str, ...]
    indices: tuple[NDArray[np.int64], ...]
    digest: str
    """Digest of the partitioned records; the indices are valid for these only."""

    def __post_init__(self) -> None:
        indices = np.sort(np.concatenate(self.indices))
        whole = indices.dtype.kind in "iu"
        if not whole or not np.array_equal(indices, np.arange(len(indices))):
            raise DataError(
                f"partition of {self.data}: assigns a record twice or not at all; create it again"
            )

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of records of each client."""
        return np.array(list(map(len, self.indices)))

    @property
    def sizes_by_client(self) -> dict[str, int]:
        """The number of records of each client, by name."""
        return dict(zip(self.clients, self.sizes.tolist(), strict=True))

    def units_by_client(self, dataset: Dataset) -> dict[str, int]:
        """Return the number of units of each client, by name."""
        client_records = self.client_records(dataset)
        counts = [len(np.unique(records.unit_numbers())) for records in client_records]
        return dict(zip(self.clients, counts, strict=True))

    def budgets_by_client(self, dataset: Dataset) -> dict[str, dict[float, int]] | None:
        """Return how many units of each client have which ε; None if records have no budgets."""
        if dataset.train.budgets is None:
            return None
        counts = []
        for records in self.client_records(dataset):
            values, numbers = np.unique(np.asarray(records.unit_budgets()), return_counts=True)
            counts.append(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        return dict(zip(self.clients, counts, strict=True))

    def client_records(self, dataset: Dataset) -> "ClientRecords":
        """Return each client's records, which are copied on access."""
        if self.digest != dataset.train.digest:
            raise DataError(
                f"partition of {self.data}: was made for different records than those of "
                f"{dataset.name}; create it again"
            )
        return ClientRecords(dataset.train, self.indices)

    def class_counts(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the number of records of each class at each client, (clients, classes).

        A task without classes has one column.
        """
        groups, kinds = dataset.task.strata(dataset.train.labels), dataset.task.stratum_count
        return np.array([np.bincount(groups[index], minlength=kinds) for index in self.indices])

    def save(self, path: Path | str) -> None:
        """Write the partition as JSON."""
        content = {
            **{name: getattr(self, name) for name in ("data", "kind", "seed", "digest")},
            "settings": dict(self.settings),
            "clients": list(self.clients),
            "records": [index.tolist() for index in self.indices],
        }
        Path(path).write_text(json.dumps(content))

    @classmethod
    def load(cls, path: Path | str) -> "Partition":
        """Read a partition that :meth:`save` wrote.

        >>> import tempfile
        >>> from pacdp.data import load_dataset
        >>> path = Path(tempfile.mkdtemp()) / "partition.json"
        >>> partition_records(load_dataset("heart"), "natural").save(path)
        >>> Partition.load(path).clients
        ('cleveland', 'hungary', 'switzerland', 'long-beach')
        """
        try:
            content = json.loads(Path(path).read_text())
            clients = tuple(content.pop("clients"))
            indices = tuple(np.array(index) for index in content.pop("records"))
            if len(clients) != len(indices):
                raise ValueError("clients and records differ in number")
            return cls(**content, clients=clients, indices=indices)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{path}: is not a partition file written by pacdp") from None


class ClientRecords(Sequence[Records]):
    """The records of each client, copied on access, so that unused ones take no memory."""

    def __init__(self, records: Records, indices: Sequence[NDArray[np.int64]]) -> None:
        self._records = records
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, client: int) -> Records: ...

    @overload
    def __getitem__(self, client: slice) -> list[Records]: ...

    def __getitem__(self, client: int | slice) -> Records | list[Records]:
        if isinstance(client, slice):
            return [self._records.take(index) for index in self._indices[client]]
        return self._records.take(self._indices[client])


def partition_records(
    dataset: Dataset, kind: str, *, clients: int | None = None, seed: int = 0, **settings: float
) -> Partition:
    """Distribute the training records to clients.

    ========================  =====================================================================
    ``natural``               as in the source data
    ``iid``                   shuffled, in equal parts
    ``dirichlet`` alpha       each class is distributed by shares drawn from Dirichlet(α)
    ``shards`` per_client     sorted by label, cut into shards, per_client shards for each client
    ``quantity`` beta         shuffled, in parts whose sizes are drawn from Dirichlet(β)
    ``near-global``           unequal sizes, and label shares drawn around the global ones from
    concentration, sizes      Dirichlet(concentration): our reading of the paper's partition
    ========================  =====================================================================

    >>> from pacdp.data import load_dataset
    >>> partition_records(load_dataset("digits"), "shards", clients=10, per_client=2).sizes.sum()
    np.int64(1438)
    """
    require_member("partition", kind, KINDS)
    records = dataset.train
    if kind == "natural":
        if clients is not None or settings:
            raise InputError(
                "partition natural: takes no number of clients and no settings; to set them, use "
                f"{', '.join(RULES)}"
            )
        indices, names = _natural(dataset)
    else:
        defaults = SETTINGS[kind]
        refuse_unknown(f"partition {kind}", settings, defaults)
        settings = {n: require_positive_number(n, settings.get(n, v)) for n, v in defaults.items()}
        if clients is None:
            raise InputError(f"partition {kind}: needs the number of clients")
        if not dataset.task.class_names and kind not in ("iid", "quantity"):
            raise InputError(
                f"partition {kind}: splits by class; {dataset.task} has natural, iid and quantity"
            )
        number = int(require_count("clients", clients))
        first, unit_of_record = records.group_by_unit()
        labels = dataset.task.strata(records.labels[first])
        if number > len(labels):
            raise InputError(
                f"clients = {number}: must be at most {len(labels)}, or some would have no records"
            )
        # Whole units are distributed, so that the records of a unit stay together.
        client_of_unit = np.empty(len(labels), np.int64)
        for client, units in enumerate(_draw(kind, labels, number, seed, settings)):
            client_of_unit[units] = client
        holders = client_of_unit[unit_of_record]
        indices = [np.flatnonzero(holders == client) for client in range(number)]
        names = tuple(f"client {n}" for n in range(number))
    return Partition(
        data=dataset.name,
        kind=kind,
        settings=settings,
        seed=seed,
        clients=names,
        indices=tuple(indices),
        digest=records.digest,
    )


def _natural(dataset: Dataset) -> tuple[Indices, tuple[str, ...]]:
    holders = dataset.train.clients
    if holders is None:
        raise InputError(
            f"partition natural: {dataset.name} has no natural clients; use {', '.join(RULES)}"
        )
    indices = [np.flatnonzero(holders == number) for number in range(len(dataset.clients))]
    for name, index in zip(dataset.clients, indices, strict=True):
        if not len(index):
            raise InputError(f"client {name}: has no records, must have at least one")
    return indices, tuple(dataset.clients)


def _draw(
    kind: str, labels: Array, clients: int, seed: int, settings: Mapping[str, float]
) -> Indices:
    random = make_generator("seed", seed)
    for _ in range(ATTEMPTS):
        with np.errstate(all="ignore"):
            indices = RULES[kind](labels, clients, random, **settings)
        if indices and all(len(index) for index in indices):
            return indices
    raise InputError(
        f"partition {kind}: {ATTEMPTS} draws each left a client without records; "
        "use fewer clients or other settings"
    )


# The rules take labels, the number of clients, a generator and their settings. They return the
# indices of each client, or an empty list if the draw has failed.


def _iid(labels: Array, clients: int, random: Generator) -> Indices:
    return np.array_split(random.permutation(len(labels)), clients)


def _dirichlet(labels: Array, clients: int, random: Generator, alpha: float = 0.5) -> Indices:
    kinds = int(labels.max()) + 1
    return _allocate(labels, random.dirichlet(np.full(clients, alpha), size=kinds).T, random)


def _shards(labels: Array, clients: int, random: Generator, per_client: float = 2.0) -> Indices:
    each = int(require_count("per_client", per_client))
    if each * clients > len(labels):
        raise InputError(
            f"per_client = {each}: {each * clients} shards are more than {len(labels)} records"
        )
    # Shuffled first, so that the records of a class are in random order.
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, each * clients)
    assigned = random.permutation(each * clients).reshape(clients, each)
    return [np.concatenate([shards[shard] for shard in row]) for row in assigned]


def _quantity(labels: Array, clients: int, random: Generator, beta: float = 1.0) -> Indices:
    shares = random.dirichlet(np.full(clients, beta))
    if not np.isfinite(shares).all():
        return []
    return _split_by_weight(random.permutation(len(labels)), shares)


def _near_global(
    labels: Array, clients: int, random: Generator, concentration: float = 100.0, sizes: float = 5.0
) -> Indices:
    overall = np.bincount(labels) / len(labels)
    client_shares = random.dirichlet(np.full(clients, sizes))
    present = overall > 0
    shares = np.zeros((clients, len(overall)))
    shares[:, present] = random.dirichlet(concentration * overall[present], clients)
    return _allocate(labels, client_shares[:, None] * shares, random)


def _allocate(labels: Array, weights: Array, random: Generator) -> Indices:
    """Distribute each class to clients in proportion to its column of weights."""
    parts = []
    for label in np.unique(labels):
        if not 0 < weights[:, label].sum() < np.inf:
            return []
        members = random.permutation(np.flatnonzero(labels == label))
        parts.append(_split_by_weight(members, weights[:, label]))
    return [np.concatenate(held) for held in zip(*parts, strict=True)]


def _split_by_weight(members: Array, weights: Array) -> Indices:
    """Cut an array into parts whose sizes are proportional to ``weights`` (largest remainder)."""
    exact = weights / weights.sum() * len(members)
    sizes = np.floor(exact).astype(np.int64)
    rest = len(members) - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    return np.split(members, np.cumsum(sizes)[:-1])


RULES: dict[str, Callable[..., Indices]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "quantity": _quantity,
    "near-global": _near_global,
}
SETTINGS: dict[str, dict[str, float]] = {
    kind: {
        name: parameter.default
        for name, parameter in inspect.signature(rule).parameters.items()
        if parameter.default is not parameter.empty
    }
    for kind, rule in RULES.items()
}
"""The settings of each kind of partition, with their defaults."""
KINDS = ("natural", *RULES)
