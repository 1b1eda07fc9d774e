"""Public stand-ins for private data: a data set, where it came from, and proof that it is apart.

The offline phase may look at a proxy as often as it likes, because no client's record is in it. So
a proxy that shares a record with a client is refused. Records are told apart by the digest of what
the source published, where this package made them, and of their features: the scaling, cropping and
augmenting done here hides nothing, nor does keeping pixels as floats. A near copy, with another
value somewhere, is another record, and is not found.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from pacdp.data.catalogue import call_with_options, load_dataset
from pacdp.data.heart import HOSPITALS
from pacdp.data.records import Array, Dataset, Records, digest_rows, make_generator
from pacdp.errors import DataError, InputError
from pacdp.tasks import Classification
from pacdp.validation import count, member


@dataclass(frozen=True, eq=False, kw_only=True)
class Proxy:
    """Public data that stand in for private ones, and how they were made."""

    data: Dataset
    stands_for: str
    made_by: str

    def __str__(self) -> str:
        return f"{self.data.name} for {self.stands_for}: {self.made_by}; {self.data.provenance}"


def refuse_overlap(proxy: Dataset, private: Dataset | Sequence[Records]) -> None:
    """Refuse a proxy of which any record is also one of the clients' records.

    The refusal says no more than that: how many records are shared, and which, is private.

    >>> from pacdp.data import load_dataset
    >>> refuse_overlap(load_dataset("breast-cancer"), load_dataset("heart"))
    >>> refuse_overlap(load_dataset("heart-full"), load_dataset("heart"))
    Traceback (most recent call last):
    ...
    pacdp.errors.DataError: proxy heart-full: shares records with private data, must share none
    """
    held = [private.train, private.test] if isinstance(private, Dataset) else list(private)
    theirs = {name for records in held for name in _names(records)}
    public = _names(proxy.train) | _names(proxy.test)
    if not theirs.isdisjoint(public):
        raise DataError(f"proxy {proxy.name}: shares records with private data, must share none")


def _names(records: Records) -> set[bytes]:
    """Everything that identifies the records: where each came from, and what is in it."""
    values = records.features
    kinds = [digest_rows(values)]
    if values.dtype.kind == "f":
        # Pixels that were divided by 255 are what they were before.
        with np.errstate(over="ignore"):
            kinds.append(digest_rows(values * values.dtype.type(255)))
    if records.keys is not None:
        kinds.append(records.keys)
    return {bytes(name) for names in kinds for name in names}


def load_proxy(name: str, proxy: str | None = None, **options: Any) -> Proxy:
    """A ready proxy for a data set: of :data:`PROXIES`, the first unless told.

    >>> made = load_proxy("heart", "synthetic")
    >>> made.data.shape, made.data.clients
    ((13,), ('cleveland', 'hungary', 'switzerland', 'long-beach'))
    """
    if name not in PROXIES:
        raise InputError(f"proxy for {name}: there is none ready, only for {', '.join(PROXIES)}")
    choices = PROXIES[name]
    chosen = member("proxy", next(iter(choices)) if proxy is None else proxy, choices)
    return call_with_options(choices[chosen], options, f"proxy {chosen} for {name}")


def digits_for_mnist(*, copies: int = 10, seed: int = 0) -> Proxy:
    """scikit-learn's digits in MNIST's frame, each in several slightly bent copies.

    They are enlarged to MNIST's box of 20 pixels and centred by their mass in 28, as MNIST was
    made; copies are turned, slanted, stretched and shifted at random. Test records are enlarged
    only.
    """
    source = load_dataset("digits")
    number = int(count("copies", copies))
    random = make_generator("seed", seed)
    return Proxy(
        data=replace(
            source,
            name="digits-for-mnist",
            train=_framed(source.train, number, random),
            test=_framed(source.test, 0, random),
        ),
        stands_for="mnist",
        made_by=f"enlarged to 28 x 28, {number} bent copies each, seed {seed}",
    )


def _framed(records: Records, copies: int, random: np.random.Generator) -> Records:
    """Each 8×8 image in a 28×28 frame; with copies, so many bent ones instead of the plain one."""
    index = np.repeat(np.arange(len(records)), max(copies, 1))
    images = np.stack([_frame(records.features[i, 0], copies > 0, random) for i in index])
    keys = records.identities()
    return Records(features=images[:, None], labels=records.labels[index], keys=keys[index])


def _frame(image: Array, bent: bool, random: np.random.Generator) -> Array:
    from scipy import ndimage

    turn = slant = 0.0
    high = wide = 1.0
    if bent:
        turn, slant = random.uniform(-0.2, 0.2), random.uniform(-0.2, 0.2)
        high, wide = random.uniform(0.85, 1.1, size=2)
    # From a place in the frame to one in the 8×8 image: 20 pixels of the frame hold its 8.
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    step = 8 / 20 * np.array([[1 / high, 0.0], [slant, 1 / wide]]) @ rotation
    values = image.astype(np.float64)
    mass = values.sum()
    middle = np.array(ndimage.center_of_mass(values)) if mass else np.full(2, 3.5)
    # MNIST's centre of mass lies at pixel 14 of 28; copies are a pixel or so off.
    centre = np.full(2, 14.0) + (random.uniform(-1, 1, size=2) if bent else 0)
    frame = ndimage.affine_transform(
        values, step, middle - step @ centre, output_shape=(28, 28), order=1
    )
    return np.clip(np.round(frame), 0, 255).astype(np.uint8)


# Three images are in CIFAR-10 and in CIFAR-100, pixel by pixel: a truck that is also a pickup
# truck, an automobile that is also a bus, and a dog that is also cattle.
SHARED_BY_CIFARS = (
    "19ecaae89ca6d5451fe82fa19445d07e",
    "3dd2dda5e4eaca6bce5743673502705f",
    "081bce524c79030f5242bf36d6615505",
)


def drop_shared_images(records: Records) -> Records:
    """CIFAR's images without those that the other CIFAR has as well."""
    shared = [bytes(one).hex() in SHARED_BY_CIFARS for one in records.identities()]
    return records.take(~np.array(shared))


def cifar100_for_cifar10(*, seed: int = 0) -> Proxy:
    """Ten of CIFAR-100's twenty superclasses, drawn from a seed: as many classes as CIFAR-10."""
    source = load_dataset("cifar100", labels="coarse")
    chosen = np.sort(make_generator("seed", seed).permutation(source.task.group_count)[:10])

    def part(records: Records) -> Records:
        kept = drop_shared_images(records.take(np.isin(records.labels, chosen)))
        return replace(kept, labels=np.searchsorted(chosen, kept.labels))

    return Proxy(
        data=replace(
            source,
            name="cifar100-for-cifar10",
            train=part(source.train),
            test=part(source.test),
            task=Classification.named([source.task.class_names[n] for n in chosen]),
        ),
        stands_for="cifar10",
        made_by=f"ten of the twenty superclasses, drawn with seed {seed}",
    )


def cifar10_for_cifar100() -> Proxy:
    """CIFAR-10, with a tenth of the classes."""
    source = load_dataset("cifar10")
    train, test = drop_shared_images(source.train), drop_shared_images(source.test)
    return Proxy(
        data=replace(source, name="cifar10-for-cifar100", train=train, test=test),
        stands_for="cifar100",
        made_by="as it is but for three images that CIFAR-100 has, too",
    )


def breast_cancer_for_heart(*, seed: int = 0) -> Proxy:
    """Breast cancer's thirty measurements in the thirteen directions in which they vary most.

    Scaled to [−1, 1] like Heart's, and dealt out to four clients of the hospitals' public sizes.
    """
    source = load_dataset("breast-cancer")
    middle = source.train.features.mean(0)
    _, _, directions = np.linalg.svd(source.train.features - middle, full_matrices=False)
    largest = np.abs((source.train.features - middle) @ directions[:13].T).max(0)

    def part(records: Records) -> Records:
        turned = (records.features - middle) @ directions[:13].T / largest
        return replace(
            records,
            features=np.clip(turned, -1, 1).astype(np.float32),
            keys=records.identities(),
        )

    return Proxy(
        data=replace(
            source,
            name="breast-cancer-for-heart",
            train=_like_hospitals(part(source.train), seed),
            test=part(source.test),
            clients=HOSPITALS,
        ),
        stands_for="heart",
        made_by="13 principal directions, dealt out to four clients",
    )


def synthetic_for_heart(*, seed: int = 0, records: int = 740, separation: float = 2.0) -> Proxy:
    """Gaussian clouds with Heart's number of records, features and clients."""
    return _clouds(
        "synthetic-for-heart",
        "Gaussian clouds, dealt out to four clients",
        seed=seed,
        records=records,
        features=13,
        separation=separation,
    )


# How well age, sex, pain and risk factors tell who has coronary disease: the c-statistic of the
# clinical model of Genders et al. (BMJ 344, 2012). Nothing of it is from the four hospitals.
_DISCRIMINATION = 0.79


def patients_for_heart(*, seed: int = 0, records: int = 5000, features: int = 13) -> Proxy:
    """Gaussian clouds that lie as close as published clinical models find patients to do.

    How far apart classes are decides which plan is good: where they hardly overlap any would do.
    """
    # Two clouds of deviation 1 and distance d' have a c-statistic of Φ(d'/√2); those of the
    # generator have a deviation of 1/√features.
    apart = math.sqrt(2) * float(norm.ppf(_DISCRIMINATION)) / math.sqrt(features)
    made_by = f"Gaussian clouds of c-statistic {_DISCRIMINATION}, dealt out to four clients"
    return _clouds(
        "patients-for-heart",
        made_by,
        seed=seed,
        records=records,
        features=features,
        separation=apart,
    )


def _clouds(
    name: str, made_by: str, *, seed: int, records: int, features: int, separation: float
) -> Proxy:
    """Gaussian clouds in the hands of four clients of the hospitals' sizes."""
    made = load_dataset(
        "synthetic",
        records=records,
        features=features,
        clients=4,
        separation=separation,
        seed=seed,
    )
    train = _like_hospitals(made.train, seed)
    data = replace(made, name=name, train=train, clients=HOSPITALS)
    return Proxy(data=data, stands_for="heart", made_by=made_by)


def _like_hospitals(records: Records, seed: int) -> Records:
    """Clients of the sizes of the four hospitals, which are public."""
    sizes = np.array([303, 261, 46, 130])
    ends = np.round(np.cumsum(sizes) / sizes.sum() * len(records)).astype(np.int64)
    order = make_generator("seed", seed).permutation(len(records))
    clients = np.empty(len(records), np.int64)
    clients[order] = np.searchsorted(ends, np.arange(len(records)), side="right")
    return replace(records, clients=clients)


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
