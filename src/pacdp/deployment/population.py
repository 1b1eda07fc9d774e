"""The clients of an experiment that take part in a federation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.experiments import Experiment
from pacdp.validation import suggest


def select_clients(
    dataset: Dataset, partition: Partition, names: Sequence[str]
) -> tuple[Dataset, Partition]:
    """Return the data set and the partition for a subset of the clients.

    The training records of the other clients are dropped. Test records are public and all kept.

    >>> from pacdp.data import load_dataset, partition_records
    >>> heart = load_dataset("heart")
    >>> hospitals = partition_records(heart, "natural")
    >>> select_clients(heart, hospitals, ["hungary"])[1].sizes_by_client
    {'hungary': 173}
    """
    for name in names:
        if name not in partition.clients:
            near = suggest(name, partition.clients)
            raise InputError(
                f"--sites: {name!r} is not a client; {near}the clients are "
                + ", ".join(partition.clients)
            )
    if not names or len(set(names)) < len(names):
        raise InputError("--sites: must be at least one name, each only once")
    chosen = [number for number, name in enumerate(partition.clients) if name in names]
    if len(chosen) == len(partition):
        return dataset, partition
    indices = [partition.indices[number] for number in chosen]
    train = dataset.train.take(np.concatenate(indices))
    ends = np.cumsum([len(index) for index in indices])
    remaining = replace(
        partition,
        clients=tuple(partition.clients[number] for number in chosen),
        indices=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        digest=train.digest,
    )
    return replace(dataset, train=train), remaining


def adapt_experiment(experiment: Experiment, before: Partition, after: Partition) -> Experiment:
    """Return the experiment for the remaining clients, with a federation's default for uploads.

    Budgets that are given per client stay with their clients. Uploads are coarse unless the
    experiment sets them otherwise.
    """
    changes: dict[str, Any] = {}
    if "upload" not in experiment.training.model_fields_set:
        changes["training"] = experiment.training.model_copy(update={"upload": "coarse"})
    given = experiment.privacy.epsilon
    if isinstance(given, tuple) and len(given) == len(before) > len(after):
        kept = tuple(
            epsilon
            for name, epsilon in zip(before.clients, given, strict=True)
            if name in after.clients
        )
        changes["privacy"] = experiment.privacy.model_copy(update={"epsilon": kept})
    return experiment.model_copy(update=changes)
