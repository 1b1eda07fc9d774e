"""Public proxies for private data, and the check that they share no record with a client.

The offline phase may use a proxy without limit, because it contains no client's record. A proxy
that shares a record with a client is therefore refused. Records are compared by the digest of the
source record, where this package derived them from one, and by that of their features, so scaling,
cropping, augmentation and storing pixels as floats hide nothing. A near copy that differs in some
value counts as another record and is not found.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from pacdp.data.catalogue import call_with_options, load_dataset
from pacdp.data.digests import digest_rows
from pacdp.data.heart import HOSPITALS
from pacdp.data.records import Array, Dataset, Records, make_generator
from pacdp.errors import DataError, InputError
from pacdp.tasks import Classification
from pacdp.validation import require_count, require_member


@dataclass(frozen=True, eq=False, kw_only=True)
class Proxy:
    """A public data set that replaces a private one offline, and how it was made."""

    data: Dataset
    stands_for: str
    made_by: str

    def __str__(self) -> str:
        return f"{self.data.name} for {self.stands_for}: {self.made_by}; {self.data.provenance}"


def refuse_overlap(proxy: Dataset, private: Dataset | Sequence[Records]) -> None:
    """Raise DataError if a proxy shares any record with the clients.

    The error does not say how many records are shared, or which: that is private.

    >>> from pacdp.data import load_dataset
    >>> refuse_overlap(load_dataset("breast-cancer"), load_dataset("heart"))
    >>> refuse_overlap(load_dataset("heart-full"), load_dataset("heart"))
    Traceback (most recent call last):
    ...
    pacdp.errors.DataError: proxy heart-full: shares records with private data, must share none
    """
    held = [private.train, private.test] if isinstance(private, Dataset) else list(private)
    identities = {identity for records in held for identity in _identify(records)}
    if not identities.isdisjoint(_identify(proxy.train) | _identify(proxy.test)):
        raise DataError(f"proxy {proxy.name}: shares records with private data, must share none")


def _identify(records: Records) -> set[bytes]:
    """Return everything that identifies the records: digests of their sources and features."""
    values = records.features
    digests = [digest_rows(values)]
    if values.dtype.kind == "f":
        # Undo a division of pixels by 255.
        with np.errstate(over="ignore"):
            digests.append(digest_rows(values * values.dtype.type(255)))
    if records.keys is not None:
        digests.append(records.keys)
    return {bytes(digest) for rows in digests for digest in rows}


def load_proxy(name: str, proxy: str | None = None, **options: Any) -> Proxy:
    """Load a predefined proxy for a data set, by default the first in :data:`PROXIES`.

    >>> substitute = load_proxy("heart", "synthetic")
    >>> substitute.data.shape, substitute.data.clients
    ((13,), ('cleveland', 'hungary', 'switzerland', 'long-beach'))
    """
    if name not in PROXIES:
        raise InputError(f"proxy for {name}: none is built in, only for {', '.join(PROXIES)}")
    choices = PROXIES[name]
    chosen = require_member("proxy", next(iter(choices)) if proxy is None else proxy, choices)
    return call_with_options(choices[chosen], options, f"proxy {chosen} for {name}")


def digits_for_mnist(*, copies: int = 10, seed: int = 0) -> Proxy:
    """Convert scikit-learn's digits to MNIST's format, with several augmented copies of each.

    They are enlarged to MNIST's box of 20 pixels and centred by their mass in 28, as MNIST was
    made. Copies are rotated, slanted, stretched and shifted at random; test records are not.
    """
    source = load_dataset("digits")
    number = int(require_count("copies", copies))
    random = make_generator("seed", seed)
    return Proxy(
        data=replace(
            source,
            name="digits-for-mnist",
            train=_enlarge(source.train, number, random),
            test=_enlarge(source.test, 0, random),
        ),
        stands_for="mnist",
        made_by=f"enlarged to 28 x 28, {number} bent copies each, seed {seed}",
    )


def _enlarge(records: Records, copies: int, random: np.random.Generator) -> Records:
    """Convert 8×8 images to 28×28; ``copies`` augmented ones instead of the plain one, if any."""
    index = np.repeat(np.arange(len(records)), max(copies, 1))
    images = np.stack([_enlarge_image(records.features[i, 0], copies > 0, random) for i in index])
    keys = records.identities()
    return Records(features=images[:, None], labels=records.labels[index], keys=keys[index])


def _enlarge_image(image: Array, augment: bool, random: np.random.Generator) -> Array:
    from scipy import ndimage

    angle = slant = 0.0
    high = wide = 1.0
    if augment:
        angle, slant = random.uniform(-0.2, 0.2), random.uniform(-0.2, 0.2)
        high, wide = random.uniform(0.85, 1.1, size=2)
    # Maps a position in the result to one in the 8×8 image: 20 pixels correspond to 8.
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = 8 / 20 * np.array([[1 / high, 0.0], [slant, 1 / wide]]) @ rotation
    values = image.astype(np.float64)
    middle = np.array(ndimage.center_of_mass(values)) if values.sum() else np.full(2, 3.5)
    # MNIST's centre of mass is at pixel 14 of 28; copies are shifted by up to a pixel.
    centre = np.full(2, 14.0) + (random.uniform(-1, 1, size=2) if augment else 0)
    result = ndimage.affine_transform(
        values, matrix, middle - matrix @ centre, output_shape=(28, 28), order=1
    )
    return np.clip(np.round(result), 0, 255).astype(np.uint8)


# Three images are identical in CIFAR-10 and CIFAR-100: a truck that is also a pickup truck, an
# automobile that is also a bus, and a dog that is also cattle.
SHARED_BY_CIFARS = (
    "19ecaae89ca6d5451fe82fa19445d07e",
    "3dd2dda5e4eaca6bce5743673502705f",
    "081bce524c79030f5242bf36d6615505",
)


def drop_shared_images(records: Records) -> Records:
    """Remove the images that CIFAR-10 and CIFAR-100 have in common."""
    shared = [bytes(identity).hex() in SHARED_BY_CIFARS for identity in records.identities()]
    return records.take(~np.array(shared))


def select_classes(source: Dataset, chosen: Array, name: str) -> Dataset:
    """Return the records of some classes of a CIFAR set, without the images that both sets share.

    ``chosen`` are sorted class numbers; the classes are numbered anew.
    """

    def select(records: Records) -> Records:
        members = drop_shared_images(records.take(np.isin(records.labels, chosen)))
        return replace(members, labels=np.searchsorted(chosen, members.labels))

    task = Classification.named([source.task.class_names[number] for number in chosen])
    return source.map_records(select, name=name, task=task)


def cifar100_for_cifar10(*, seed: int = 0) -> Proxy:
    """Select ten of CIFAR-100's twenty superclasses: as many classes as CIFAR-10."""
    source = load_dataset("cifar100", labels="coarse")
    chosen = np.sort(make_generator("seed", seed).permutation(source.task.stratum_count)[:10])
    return Proxy(
        data=select_classes(source, chosen, "cifar100-for-cifar10"),
        stands_for="cifar10",
        made_by=f"ten of the twenty superclasses, drawn with seed {seed}",
    )


def cifar10_for_cifar100() -> Proxy:
    """Use CIFAR-10, which has a tenth of the classes."""
    return Proxy(
        data=load_dataset("cifar10").map_records(drop_shared_images, name="cifar10-for-cifar100"),
        stands_for="cifar100",
        made_by="as it is but for three images that CIFAR-100 has, too",
    )


def breast_cancer_for_heart(*, seed: int = 0) -> Proxy:
    """Project breast cancer's thirty measurements onto their first thirteen principal directions.

    They are scaled to [−1, 1] like Heart's and distributed to four clients of the hospitals' sizes.
    """
    source = load_dataset("breast-cancer")
    middle = source.train.features.mean(0)
    _, _, directions = np.linalg.svd(source.train.features - middle, full_matrices=False)
    largest = np.abs((source.train.features - middle) @ directions[:13].T).max(0)

    def project(records: Records) -> Records:
        values = (records.features - middle) @ directions[:13].T / largest
        features = np.clip(values, -1, 1).astype(np.float32)
        return replace(records, features=features, keys=records.identities())

    return _proxy_for_heart(
        source.map_records(project, name="breast-cancer-for-heart"),
        "13 principal directions, dealt out to four clients",
        seed,
    )


def synthetic_for_heart(*, seed: int = 0, records: int = 740, separation: float = 2.0) -> Proxy:
    """Generate Gaussian clusters with Heart's number of records, features and clients."""
    data = load_dataset(
        "synthetic", records=records, features=13, clients=4, separation=separation, seed=seed
    )
    made_by = "Gaussian clouds, dealt out to four clients"
    return _proxy_for_heart(replace(data, name="synthetic-for-heart"), made_by, seed)


# The c-statistic of the clinical model of Genders et al. (BMJ 344, 2012), which predicts coronary
# disease from age, sex, pain and risk factors. It does not depend on the four hospitals.
_DISCRIMINATION = 0.79


def patients_for_heart(*, seed: int = 0, records: int = 5000, features: int = 13) -> Proxy:
    """Generate Gaussian clusters that are as hard to separate as patients in published studies.

    The best hyperparameters depend on the distance of the classes; any would do if they hardly
    overlapped.
    """
    # Two clusters of standard deviation 1 and distance d' have a c-statistic of Φ(d'/√2); those of
    # the generator have a standard deviation of 1/√features.
    separation = math.sqrt(2) * float(norm.ppf(_DISCRIMINATION)) / math.sqrt(features)
    data = load_dataset(
        "synthetic", records=records, features=features, clients=4, separation=separation, seed=seed
    )
    made_by = f"Gaussian clouds of c-statistic {_DISCRIMINATION}, dealt out to four clients"
    return _proxy_for_heart(replace(data, name="patients-for-heart"), made_by, seed)


def _proxy_for_heart(data: Dataset, made_by: str, seed: int) -> Proxy:
    """Distribute the training records to four clients of the hospitals' sizes, which are public."""
    sizes = np.array([303, 261, 46, 130])
    records = len(data.train)
    ends = np.round(np.cumsum(sizes) / sizes.sum() * records).astype(np.int64)
    order = make_generator("seed", seed).permutation(records)
    clients = np.empty(records, np.int64)
    clients[order] = np.searchsorted(ends, np.arange(records), side="right")
    train = replace(data.train, clients=clients)
    return Proxy(
        data=replace(data, train=train, clients=HOSPITALS), stands_for="heart", made_by=made_by
    )


PROXIES: dict[str, dict[str, Callable[..., Proxy]]] = {
    "mnist": {"digits": digits_for_mnist},
    "cifar10": {"cifar100": cifar100_for_cifar10},
    "cifar100": {"cifar10": cifar10_for_cifar100},
    "heart": {
        "synthetic": synthetic_for_heart,
        "breast-cancer": breast_cancer_for_heart,
        "patients": patients_for_heart,
    },
}
