"""Public data by name: records to train extractors on, and a proxy to select configurations with.

A configuration is never evaluated on records that its extractor was trained on. Where public
records are many, some are held out for good; where they are few, the extractor is trained a second
time, on all of them, when the configuration is decided.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pacdp.data import Dataset, load_dataset
from pacdp.data.proxy import Proxy, digits_for_mnist, drop_shared_images, select_classes
from pacdp.data.records import Provenance, Records, concatenate_records
from pacdp.validation import require_member


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicData:
    """Public records for training extractors and for selecting configurations."""

    name: str
    training: Dataset
    """What the extractor of a run is trained on."""
    selection_training: Dataset
    """What it is trained on during selection: no record of ``selection_proxy``."""
    selection_proxy: Proxy
    """The task on which configurations are compared."""


@lru_cache(maxsize=2)
def load_public_data(name: str) -> PublicData:
    """Load public data by name.

    >>> load_public_data("mnist")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: representation.public = 'mnist': must be one of cifar100, cifar10, ...
    """
    return PUBLIC_DATA[require_member("representation.public", name, PUBLIC_DATA)]()


def _load_cifar100() -> PublicData:
    """Train on ninety classes, and select on the ten others."""
    training, others = _split_by_class(load_dataset("cifar100"), held_out=10)
    return PublicData(
        name="cifar100",
        training=training,
        selection_training=training,
        selection_proxy=Proxy(
            data=others, stands_for="cifar10", made_by="ten classes left out of training"
        ),
    )


def _load_cifar10() -> PublicData:
    """Train on the training images; select on five classes, after training on the other five.

    Any task looks easy to a network that was trained on the same classes.
    """
    source = load_dataset("cifar10")
    selection_training, others = _split_by_class(source, held_out=5)
    return PublicData(
        name="cifar10",
        training=_training_only(
            source, "cifar10, training images", drop_shared_images(source.train)
        ),
        selection_training=selection_training,
        selection_proxy=Proxy(
            data=others, stands_for="cifar100", made_by="five classes left out of training"
        ),
    )


def _training_only(source: Dataset, name: str, train: Records) -> Dataset:
    """Return a data set with these training records and no test records."""
    return replace(source, name=name, train=train, test=source.test.take(np.arange(0)))


def _split_by_class(source: Dataset, *, held_out: int) -> tuple[Dataset, Dataset]:
    """Split a CIFAR set into all images of some classes, and the others' train and test images."""
    order = np.random.default_rng(0).permutation(source.task.stratum_count)
    held, chosen = np.sort(order[:held_out]), np.sort(order[held_out:])
    training = select_classes(source, chosen, f"{source.name}, {len(chosen)} classes")
    joined = concatenate_records(training.train, training.test)
    training = _training_only(training, training.name, joined)
    # A few images are identical in two classes, and must not be on both sides.
    known = joined.identities()
    others = select_classes(source, held, f"{source.name}, {held_out} other classes")
    return training, others.map_records(
        lambda records: records.take(~np.isin(records.identities(), known))
    )


def _load_handwriting() -> PublicData:
    """Train on generated strokes and scikit-learn's digits; select on digits, with strokes only."""
    strokes = load_dataset("strokes", records=60_000)
    proxy = digits_for_mnist(copies=10)
    digits = proxy.data
    drawn = concatenate_records(strokes.train, strokes.test)
    both = (strokes.provenance, digits.provenance)
    training = _training_only(
        strokes,
        "generated strokes and scikit-learn's digits",
        concatenate_records(drawn, digits.train, digits.test),
    )
    provenance = Provenance(
        source=" and ".join(part.source for part in both),
        licence=" and ".join(part.licence for part in both),
        citation=digits.provenance.citation,
    )
    return PublicData(
        name="handwriting",
        training=replace(training, provenance=provenance),
        # No digit, and so none of the augmented copies of one.
        selection_training=_training_only(strokes, "generated strokes", drawn),
        selection_proxy=proxy,
    )


PUBLIC_DATA: dict[str, Callable[[], PublicData]] = {
    "cifar100": _load_cifar100,
    "cifar10": _load_cifar10,
    "handwriting": _load_handwriting,
}
