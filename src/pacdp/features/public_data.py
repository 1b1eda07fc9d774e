"""Public records by name: what a network is trained on, and what plans are judged by.

Nothing is judged by records that it was trained on. Where public records are many, some are never
trained on; where they are few, the network is trained a second time, on all of them, when the plan
is decided.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pacdp.data import Dataset, load
from pacdp.data.proxy import Proxy, digits_for_mnist, without_shared
from pacdp.data.records import Provenance, Records, joined
from pacdp.tasks import Classification
from pacdp.validation import member


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool:
    """Public records in their two parts."""

    name: str
    training: Dataset
    """What the network that is used is trained on."""
    rehearsal: Dataset
    """What it is trained on while the plan is being decided: nothing that it is judged by."""
    judge: Proxy
    """The task on which plans are judged."""


@lru_cache(maxsize=2)
def pool(name: str) -> Pool:
    """The public records of that name.

    >>> pool("mnist")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: representation.public = 'mnist': must be one of cifar100, cifar10, ...
    """
    return POOLS[member("representation.public", name, POOLS)]()


def _cifar100() -> Pool:
    """Ninety classes to train on, and ten that no network has seen to judge plans by."""
    training, judged = _by_classes(load("cifar100"), judges=10)
    return Pool(
        name="cifar100",
        training=training,
        rehearsal=training,
        judge=Proxy(data=judged, stands_for="cifar10", made_by="ten classes left out of training"),
    )


def _cifar10() -> Pool:
    """The training images to train on; plans are judged by five classes, on the other five alone.

    A network that knows the classes of its judge makes any task look easy.
    """
    source = load("cifar10")
    rehearsal, judged = _by_classes(source, judges=5)
    return Pool(
        name="cifar10",
        training=replace(
            source,
            name="cifar10, training images",
            train=without_shared(source.train),
            test=source.test.take(np.arange(0)),
        ),
        rehearsal=rehearsal,
        judge=Proxy(
            data=judged, stands_for="cifar100", made_by="five classes left out of training"
        ),
    )


def _by_classes(source: Dataset, *, judges: int) -> tuple[Dataset, Dataset]:
    """All images of some classes to train on, and so many other classes to judge by."""
    drawn = np.random.default_rng(0).permutation(source.task.group_count)
    unseen, seen = np.sort(drawn[:judges]), np.sort(drawn[judges:])

    def part(records: Records, classes: np.ndarray) -> Records:
        kept = without_shared(records.take(np.isin(records.labels, classes)))
        return replace(kept, labels=np.searchsorted(classes, kept.labels))

    def task(classes: np.ndarray) -> Classification:
        return Classification.named([source.task.class_names[number] for number in classes])

    training = replace(
        source,
        name=f"{source.name}, {len(seen)} classes",
        train=joined(part(source.train, seen), part(source.test, seen)),
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


def _handwriting() -> Pool:
    """Generated strokes and scikit-learn's digits; plans are judged by digits, on strokes alone."""
    strokes = load("strokes", records=60_000)
    judge = digits_for_mnist(copies=10)
    digits = judge.data
    both = (strokes.provenance, digits.provenance)
    training = replace(
        strokes,
        name="generated strokes and scikit-learn's digits",
        train=joined(strokes.train, strokes.test, digits.train, digits.test),
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
        train=joined(strokes.train, strokes.test),
        test=strokes.test.take(np.arange(0)),
    )
    return Pool(name="handwriting", training=training, rehearsal=rehearsal, judge=judge)


POOLS: dict[str, Callable[[], Pool]] = {
    "cifar100": _cifar100,
    "cifar10": _cifar10,
    "handwriting": _handwriting,
}
