"""The clients of a federation, as far as everybody may know them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.tasks import Task
from pacdp.validation import require_name


@dataclass(frozen=True, kw_only=True)
class Population:
    """Who takes part, with how many records of which shape and for which task. All of it is public.

    ``sizes`` are the clients' numbers of records; ``units`` those of persons (or whatever ``unit``
    says), where several records belong to one and a budget protects all of them.
    """

    sizes: Mapping[str, int]
    shape: tuple[int, ...]
    task: Task
    unit: str = "record"
    units: Mapping[str, int] | None = None
    data: str = "data"
    """What the data are called, in plans and ledgers."""

    def __post_init__(self) -> None:
        if not self.sizes:
            raise InputError("clients: there are none, must be at least one")
        require_name("unit", self.unit)
        if (self.units is None) != (self.unit == "record"):
            raise InputError(
                f"unit = {self.unit!r}: the number of units must be given just where there are"
            )

    @classmethod
    def of(cls, dataset: Dataset, partition: Partition, *, data: str | None = None) -> "Population":
        """The clients among whom a data set is partitioned.

        >>> from pacdp.data import load_dataset, partition_records
        >>> heart = load_dataset("heart")
        >>> Population.of(heart, partition_records(heart, "natural")).sizes["cleveland"]
        200
        """
        return cls(
            sizes=partition.named_sizes,
            shape=dataset.shape,
            task=dataset.task,
            unit=dataset.unit,
            units=None if dataset.unit == "record" else partition.named_units(dataset),
            data=data or dataset.name,
        )
