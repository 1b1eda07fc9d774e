"""The public facts about the clients of a federation."""

from collections.abc import Mapping
from dataclasses import dataclass

from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.federation.budgets import RecordBudgets, round_to_total
from pacdp.tasks import Task
from pacdp.validation import require_name


@dataclass(frozen=True, kw_only=True)
class Population:
    """Who takes part, with how many records, of which shape and for which task. All is public.

    ``sizes`` are the clients' numbers of records. Where several records belong to one person (or
    another ``unit``) and a budget protects them together, ``units`` are the numbers of units.
    """

    sizes: Mapping[str, int]
    shape: tuple[int, ...]
    task: Task
    unit: str = "record"
    units: Mapping[str, int] | None = None
    data: str = "data"
    """The name of the data in plans and ledgers."""
    budgets: Mapping[str, Mapping[float, int]] | None = None
    """Where records have budgets of their own: how many units of each client have which ε."""

    def __post_init__(self) -> None:
        if not self.sizes:
            raise InputError("clients: there are none, must be at least one")
        require_name("unit", self.unit)
        if (self.units is None) != (self.unit == "record"):
            raise InputError(
                f"unit = {self.unit!r}: units must be given if it is not record, and only then"
            )

    @classmethod
    def of(cls, dataset: Dataset, partition: Partition, *, data: str | None = None) -> "Population":
        """Return the clients of a partitioned data set.

        >>> from pacdp.data import load_dataset, partition_records
        >>> heart = load_dataset("heart")
        >>> Population.of(heart, partition_records(heart, "natural")).sizes["cleveland"]
        200
        """
        return cls(
            sizes=partition.sizes_by_client,
            shape=dataset.shape,
            task=dataset.task,
            unit=dataset.unit,
            units=None if dataset.unit == "record" else partition.units_by_client(dataset),
            data=data or dataset.name,
            budgets=partition.budgets_by_client(dataset),
        )


def count_levels(records: RecordBudgets, population: Population, client: str) -> list[int]:
    """Return how many units of a client have each level, by the budgets that its records have."""
    if population.budgets is None:
        raise InputError(
            "privacy.records: the records have no budgets of their own; give shares, a budget "
            "column, or data.budgets"
        )
    held = population.budgets[client]
    if not set(held) <= set(records.levels):
        raise InputError(
            f"client {client}: some budgets are not among the levels, must be one of "
            f"{', '.join(f'{epsilon:g}' for epsilon in records.levels)}"
        )
    return [held.get(epsilon, 0) for epsilon in records.levels]


def pool_shares(records: RecordBudgets, population: Population) -> RecordBudgets:
    """Return the same levels with the shares that they have among all clients, in percent.

    This is how a public proxy, whose records have no budgets, gets the same mix of levels.
    """
    if records.shares is not None:
        return records
    counts = [count_levels(records, population, client) for client in population.sizes]
    totals = [sum(level) for level in zip(*counts, strict=True)]
    percent = round_to_total([100 * total / sum(totals) for total in totals], 100)
    return RecordBudgets(levels=records.levels, shares=tuple(part / 100 for part in percent))
