"""Public records by name: what a network is trained on, and what plans are judged by.

Nothing is judged by records that it was trained on. Where public records are many, some are never
trained on; where they are few, the network is trained a second time, on all of them, when the plan
is decided.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pacdp.data import Dataset, load_dataset
from pacdp.data.proxy import Proxy, digits_for_mnist, drop_shared_images
from pacdp.data.records import Provenance, Records, concatenate_records
from pacdp.tasks import Classification
from pacdp.validation import member


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicData:
    """Public records in their two parts."""

    name: str
    training: Dataset
    """What the network that is used is trained on."""
    selection_training: Dataset
    """What it is trained on while the plan is being decided: nothing that it is judged by."""
    selection_proxy: Proxy
    """The task on which plans are judged."""


@lru_cache(maxsize=2)
def load_public_data(name: str) -> PublicData:
    """The public records of that name.

    >>> load_public_data("mnist")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: representation.public = 'mnist': must be one of cifar100, cifar10, ...
    """
    return PUBLIC_DATA[member("representation.public", name, PUBLIC_DATA)]()


def _cifar100() -> PublicData:
    """Ninety classes to train on, and ten that no network has seen to judge plans by."""
    training, judged = _by_classes(load_dataset("cifar100"), judges=10)
    return PublicData(
        name="cifar100",
        training=training,
        selection_training=training,
        selection_proxy=Proxy(
            data=judged, stands_for="cifar10", made_by="ten classes left out of training"
        ),
    )


def _cifar10() -> PublicData:
    """The training images to train on; plans are judged by five classes, on the other five alone.

    A network that knows the classes of its judge makes any task look easy.
    """
    source = load_dataset("cifar10")
    rehearsal, judged = _by_classes(source, judges=5)
    return PublicData(
        name="cifar10",
        training=replace(
            source,
            name="cifar10, training images",
            train=drop_shared_images(source.train),
            test=source.test.take(np.arange(0)),
        ),
        selection_training=rehearsal,
        selection_proxy=Proxy(
            data=judged, stands_for="cifar100", made_by="five classes left out of training"
        ),
    )


def _by_classes(source: Dataset, *, judges: int) -> tuple[Dataset, Dataset]:
    """All images of some classes to train on, and so many other classes to judge by."""
    drawn = np.random.default_rng(0).permutation(source.task.group_count)
    unseen, seen = np.sort(drawn[:judges]), np.sort(drawn[judges:])

    def part(records: Records, classes: np.ndarray) -> Records:
        kept = drop_shared_images(records.take(np.isin(records.labels, classes)))
        return replace(kept, labels=np.searchsorted(classes, kept.labels))

    def task(classes: np.ndarray) -> Classification:
        return Classification.named([source.task.class_names[number] for number in classes])

    training = replace(
        source,
        name=f"{source.name}, {len(seen)} classes",
        train=concatenate_records(part(source.train, seen), part(source.test, seen)),
        test=part(source.test, seen).take(np.arange(0)),
        task=task(seen),
    )
    # A few images are in two classes, pixel by pixel; what was trained on is no judge.
    trained_on = training.train.identities()

    def unknown(records: Records) -> Records:
        return records.take(~np.isin(records.identities(), trained_on))

    judged = replace(
        source,
        name=f"{source.name}, {judges} other classes",
        train=unknown(part(source.train, unseen)),
        test=unknown(part(source.test, unseen)),
        task=task(unseen),
    )
    return training, judged


def _handwriting() -> PublicData:
    """Generated strokes and scikit-learn's digits; plans are judged by digits, on strokes alone."""
    strokes = load_dataset("strokes", records=60_000)
    judge = digits_for_mnist(copies=10)
    digits = judge.data
    both = (strokes.provenance, digits.provenance)
    training = replace(
        strokes,
        name="generated strokes and scikit-learn's digits",
        train=concatenate_records(strokes.train, strokes.test, digits.train, digits.test),
        test=strokes.test.take(np.arange(0)),
        provenance=Provenance(
            source=" and ".join(one.source for one in both),
            licence=" and ".join(one.licence for one in both),
            citation=digits.provenance.citation,
        ),
    )
    # No digit, so none of the bent copies of one either.
    rehearsal = replace(
        strokes,
        name="generated strokes",
        train=concatenate_records(strokes.train, strokes.test),
        test=strokes.test.take(np.arange(0)),
    )
    return PublicData(
        name="handwriting", training=training, selection_training=rehearsal, selection_proxy=judge
    )


PUBLIC_DATA: dict[str, Callable[[], PublicData]] = {
    "cifar100": _cifar100,
    "cifar10": _cifar10,
    "handwriting": _handwriting,
}
