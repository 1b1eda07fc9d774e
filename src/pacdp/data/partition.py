"""Who holds which records: natural, uniform or skewed splits among clients, from a seed.

Every record is held by exactly one client and no client is empty. Where records belong to units,
a unit is never torn apart. A partition is a value that is saved with a run and can be read back.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pacdp.data.records import Array, Dataset, Records, make_generator
from pacdp.errors import DataError, InputError
from pacdp.validation import count, member, positive_number

Indices = list[NDArray[np.int64]]
# A skewed draw that leaves a client without records is drawn again, this often.
ATTEMPTS = 100


@dataclass(frozen=True, eq=False, kw_only=True)
class Partition:
    """The training records of each client, by their position in the data set."""

    data: str
    kind: str
    settings: Mapping[str, Any]
    seed: int
    clients: tuple[str, ...]
    indices: tuple[NDArray[np.int64], ...]
    digest: str
    """Of the records that were split: indices mean nothing for others."""

    def __post_init__(self) -> None:
        held = np.sort(np.concatenate(self.indices))
        if held.dtype.kind not in "iu" or not np.array_equal(held, np.arange(len(held))):
            raise DataError(
                f"partition of {self.data}: holds a record twice or not at all, must hold each once"
            )

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many records each client holds."""
        return np.array([len(index) for index in self.indices])

    @property
    def named_sizes(self) -> dict[str, int]:
        """How many records each client holds, by its name."""
        return dict(zip(self.clients, self.sizes.tolist(), strict=True))

    def named_units(self, dataset: Dataset) -> dict[str, int]:
        """How many units each client holds, by its name."""
        counts = [
            len(records) if records.units is None else len(np.unique(records.units))
            for records in self.client_records(dataset)
        ]
        return dict(zip(self.clients, counts, strict=True))

    def client_records(self, dataset: Dataset) -> "Shares":
        """Each client's own records, copied out when they are asked for."""
        if self.digest != dataset.train.digest:
            raise DataError(
                f"partition of {self.data}: was made for other records than these of {dataset.name}"
            )
        return Shares(dataset.train, self.indices)

    def class_counts(self, dataset: Dataset) -> NDArray[np.int64]:
        """How many records of each class each client holds: (clients, classes).

        One column for a task without classes.
        """
        groups, kinds = dataset.task.groups(dataset.train.labels), dataset.task.group_count
        return np.array([np.bincount(groups[index], minlength=kinds) for index in self.indices])

    def save(self, path: Path | str) -> None:
        """Write it as JSON."""
        content = {
            **{name: getattr(self, name) for name in ("data", "kind", "seed", "digest")},
            "settings": dict(self.settings),
            "clients": list(self.clients),
            "records": [index.tolist() for index in self.indices],
        }
        Path(path).write_text(json.dumps(content))

    @classmethod
    def load(cls, path: Path | str) -> "Partition":
        """Read what :meth:`save` wrote.

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
            raise DataError(f"{path}: is no partition that pacdp saved") from None


class Shares(Sequence[Records]):
    """The records of each client. Those of clients that nobody asks take no memory."""

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
    """Split the training records among clients.

    ========================  =====================================================================
    ``natural``               by who holds them in the source
    ``iid``                   shuffled, in equal parts
    ``dirichlet`` alpha       each class is spread over clients by Dirichlet(α) shares
    ``shards`` per_client     sorted by label, cut, and so many pieces for each client
    ``quantity`` beta         shuffled, in parts of Dirichlet(β) sizes
    ``near-global``           unequal sizes, and label shares that scatter around the global ones by
    concentration             Dirichlet(concentration): how we read the paper's partition
    ========================  =====================================================================

    >>> from pacdp.data import load_dataset
    >>> partition_records(load_dataset("digits"), "shards", clients=10, per_client=2).sizes.sum()
    np.int64(1438)
    """
    member("partition", kind, KINDS)
    records = dataset.train
    if kind == "natural":
        if clients is not None or settings:
            raise InputError(
                "partition natural: is given by the data; with a number of clients or settings use "
                f"{', '.join(RULES)}"
            )
        indices, names = _natural(dataset)
    else:
        rule, defaults = RULES[kind]
        unknown = [name for name in settings if name not in defaults]
        if unknown:
            raise InputError(
                f"partition {kind}: has no setting {unknown[0]}; "
                f"there are {', '.join(defaults) or 'none'}"
            )
        settings = {n: positive_number(n, settings.get(n, v)) for n, v in defaults.items()}
        if clients is None:
            raise InputError(f"partition {kind}: needs the number of clients")
        if not dataset.task.class_names and kind not in ("iid", "quantity"):
            raise InputError(
                f"partition {kind}: splits by class; {dataset.task} has natural, iid and quantity"
            )
        number = int(count("clients", clients))
        labels, belongs = _by_unit(dataset)
        if number > len(labels):
            raise InputError(
                f"clients = {number}: must be at most {len(labels)}, or some would have no records"
            )
        chosen = _draw(rule, labels, number, seed, settings, kind)
        indices = _expanded(chosen, belongs)
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


def _by_unit(dataset: Dataset) -> tuple[Array, Array]:
    """The class of each unit, and the unit of each record."""
    records = dataset.train
    units = np.arange(len(records)) if records.units is None else records.units
    _, first, belongs = np.unique(units, return_index=True, return_inverse=True)
    return dataset.task.groups(records.labels[first]), belongs


def _expanded(chosen: Indices, belongs: Array) -> Indices:
    """From units to their records."""
    owner = np.empty(belongs.max() + 1, np.int64)
    for client, units in enumerate(chosen):
        owner[units] = client
    holder = owner[belongs]
    return [np.flatnonzero(holder == client) for client in range(len(chosen))]


Rule = Callable[[Array, int, np.random.Generator, Mapping[str, float]], Indices]


def _draw(
    rule: Rule, labels: Array, clients: int, seed: int, settings: Mapping[str, float], kind: str
) -> Indices:
    random = make_generator("seed", seed)
    for _ in range(ATTEMPTS):
        with np.errstate(all="ignore"):
            found = rule(labels, clients, random, settings)
        if found and all(len(index) for index in found):
            return found
    raise InputError(
        f"partition {kind}: {ATTEMPTS} draws each left a client without records; "
        "must have fewer clients or other settings"
    )


def _iid(
    labels: Array, clients: int, random: np.random.Generator, settings: Mapping[str, float]
) -> Indices:
    return np.array_split(random.permutation(len(labels)), clients)


def _dirichlet(
    labels: Array, clients: int, random: np.random.Generator, settings: Mapping[str, float]
) -> Indices:
    kinds = int(labels.max()) + 1
    shares = random.dirichlet(np.full(clients, settings["alpha"]), size=kinds).T
    return _allocated(labels, shares, random)


def _shards(
    labels: Array, clients: int, random: np.random.Generator, settings: Mapping[str, float]
) -> Indices:
    each = int(count("per_client", settings["per_client"]))
    if each * clients > len(labels):
        raise InputError(
            f"per_client = {each}: {each * clients} shards are more than {len(labels)} records"
        )
    # Shuffled first, so that which records of a class come together is chance.
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, each * clients)
    dealt = random.permutation(each * clients).reshape(clients, each)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _quantity(
    labels: Array, clients: int, random: np.random.Generator, settings: Mapping[str, float]
) -> Indices:
    shares = random.dirichlet(np.full(clients, settings["beta"]))
    if not np.isfinite(shares).all():
        return []
    cuts = np.cumsum(_rounded(shares, len(labels)))[:-1]
    return np.split(random.permutation(len(labels)), cuts)


def _near_global(
    labels: Array, clients: int, random: np.random.Generator, settings: Mapping[str, float]
) -> Indices:
    overall = np.bincount(labels) / len(labels)
    sizes = random.dirichlet(np.full(clients, settings["sizes"]))
    present = overall > 0
    shares = np.zeros((clients, len(overall)))
    shares[:, present] = random.dirichlet(settings["concentration"] * overall[present], clients)
    return _allocated(labels, sizes[:, None] * shares, random)


def _allocated(labels: Array, weights: Array, random: np.random.Generator) -> Indices:
    """Deal out each class among clients in proportion to its column of weights."""
    dealt: list[list[Array]] = [[] for _ in weights]
    for kind in np.unique(labels):
        if not 0 < weights[:, kind].sum() < np.inf:
            return []  # a class that nobody drew: drawn again
        members = random.permutation(np.flatnonzero(labels == kind))
        cuts = np.cumsum(_rounded(weights[:, kind], len(members)))[:-1]
        for hand, part in zip(dealt, np.split(members, cuts), strict=True):
            hand.append(part)
    return [np.concatenate(hand) for hand in dealt]


def _rounded(weights: Array, total: int) -> NDArray[np.int64]:
    """Whole numbers in proportion to ``weights`` that add up to ``total`` (largest remainder)."""
    exact = weights / weights.sum() * total
    whole = np.floor(exact).astype(np.int64)
    rest = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return whole


# Each drawn kind with its settings and what they are unless given.
RULES: dict[str, tuple[Rule, Mapping[str, float]]] = {
    "iid": (_iid, {}),
    "dirichlet": (_dirichlet, {"alpha": 0.5}),
    "shards": (_shards, {"per_client": 2.0}),
    "quantity": (_quantity, {"beta": 1.0}),
    "near-global": (_near_global, {"concentration": 100.0, "sizes": 5.0}),
}
KINDS = ("natural", *RULES)
