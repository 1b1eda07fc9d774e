"""The catalogue of data sets, and loading one by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pacdp.data import builtin, heart, images, strokes, user_folder
from pacdp.data.images import ImageSet
from pacdp.data.records import Dataset
from pacdp.data.sources import SOURCES
from pacdp.data.storage import VARIABLE, data_folder
from pacdp.errors import DataError, InputError
from pacdp.plugins import import_object, is_path
from pacdp.validation import refuse_unknown, suggest

T = TypeVar("T")
Loader = TypeVar("Loader", bound=Callable[..., Dataset])


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set that can be loaded by name: built in, or read from downloaded files."""

    name: str
    loader: Callable[..., Dataset] | ImageSet

    @property
    def summary(self) -> str:
        """A short description."""
        if self.name in SOURCES:
            return str(SOURCES[self.name]["summary"])
        return inspect.getdoc(self.loader) or ""

    @property
    def files(self) -> ImageSet | None:
        """The image set that must be downloaded, or None if the data set is built in."""
        return self.loader if isinstance(self.loader, ImageSet) else None

    def location(self, folder: Path) -> str | None:
        """Return ``built in`` or the folder with its files; None if they must be downloaded."""
        if self.files is None:
            return "built in"
        place = self.files.locate(folder)
        return None if place is None else str(place)


_LOADERS: dict[str, Callable[..., Dataset] | ImageSet] = {
    "heart": heart.load_heart,
    "heart-full": heart.load_heart_full,
    "mnist": images.MNIST,
    "cifar10": images.CIFAR10,
    "cifar100": images.CIFAR100,
    "digits": builtin.load_digits,
    "breast-cancer": builtin.load_breast_cancer,
    "synthetic": builtin.generate_synthetic,
    "strokes": strokes.generate_strokes,
}
CATALOGUE = {name: CatalogueEntry(name, loader) for name, loader in _LOADERS.items()}


def register_dataset(name: str) -> Callable[[Loader], Loader]:
    """Decorator that registers a function that loads a data set under a name.

    Its keyword-only parameters are the options of the data set.
    """

    def register(loader: Loader) -> Loader:
        CATALOGUE[name] = CatalogueEntry(name, loader)
        return loader

    return register


def find_entry(name: str) -> CatalogueEntry:
    """Return the catalogue entry of that name; for an unknown name the error suggests others.

    >>> find_entry("heart").summary[:17]
    'UCI Heart Disease'
    >>> find_entry("hart")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: data = 'hart': unknown; did you mean heart or heart-full? there are ...
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if is_path(name):
        loader = import_object("data", name)
        if not callable(loader):
            raise InputError(f"data = {name!r}: must be a function that returns a data set")
        return CatalogueEntry(name, loader)
    if Path(name).is_file():
        raise InputError(f"data = {name!r}: is a file; name the folder with a file for each client")
    raise InputError(
        f"data = {name!r}: unknown; {suggest(name, CATALOGUE)}there are {', '.join(CATALOGUE)}, "
        "or a folder with a file for each client"
    )


def load_dataset(name: str | Path, *, folder: Path | None = None, **options: Any) -> Dataset:
    """Load a data set of the catalogue by its name, or data supplied by the user.

    User data are a folder with a file for each client, or a function ``module:function``.

    ``options`` depend on the data set: ``split`` (the seed of the test split) for the small ones,
    sizes for ``synthetic`` and ``strokes``, ``labels`` (fine or coarse) for CIFAR-100, ``classes``,
    ``unit`` and others for a folder. Downloaded files are verified while they are read.

    >>> print(load_dataset("heart"))
    heart: 490 + 250 records (13,), 2 classes
    """
    # A name in the catalogue wins over a folder of the same name.
    if str(name) and str(name) not in CATALOGUE and Path(name).is_dir():
        return call_with_options(partial(user_folder.read_folder, Path(name)), options, str(name))
    entry = find_entry(str(name))
    if not isinstance(entry.loader, ImageSet):
        dataset = call_with_options(entry.loader, options, entry.name)
        if not isinstance(dataset, Dataset):  # of the user's own function
            raise InputError(
                f"data = {entry.name!r}: returns {type(dataset).__name__}, must be a data set"
            )
        return dataset
    home = data_folder() if folder is None else folder
    place = entry.loader.locate(home)
    if place is None:
        raise DataError(
            f"{entry.name}: is not in {home} ({VARIABLE} names another folder); "
            f"get it with: pacdp data get {entry.name}"
        )
    pixels = entry.loader.read(place)
    return call_with_options(partial(entry.loader.dataset, pixels), options, entry.name)


def call_with_options(function: Callable[..., T], options: dict[str, Any], name: str) -> T:
    """Call a function with keyword options; one that it does not have is refused by name."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of Python itself have no signature
        raise InputError(f"{name}: its options are not known, must be a Python function") from None
    parameters = signature.parameters.values()
    refuse_unknown(
        name, options, [p.name for p in parameters if p.kind is p.KEYWORD_ONLY], "option"
    )
    try:
        signature.bind(**options)
    except TypeError as error:
        raise InputError(f"{name}: {error}, which must be given as an option") from None
    return function(**options)
