"""Every data set by its name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pacdp.data import builtin, heart, images, strokes, user_folder
from pacdp.data.images import ImageSet
from pacdp.data.records import Dataset
from pacdp.data.storage import VARIABLE, data_folder
from pacdp.errors import DataError, InputError
from pacdp.validation import meant

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What the list of data sets says of one of them."""

    name: str
    summary: str
    make: Callable[..., Dataset] | None = None
    """Makes it from nothing, if it needs no files."""
    files: ImageSet | None = None
    """Where its files come from, if it needs them."""

    def where(self, folder: Path) -> str | None:
        """Where it is: in the package, or in which folder; None if it must be got first."""
        if self.files is None:
            return "built in"
        place = self.files.place(folder)
        return None if place is None else str(place)


CATALOGUE = {
    listing.name: listing
    for listing in (
        Listing(
            name="heart",
            summary="UCI Heart Disease, 740 complete records of four hospitals, 13 features",
            make=heart.heart,
        ),
        Listing(
            name="heart-full",
            summary="the same, all 920 records, with flags for what is missing, 28 features",
            make=heart.heart_full,
        ),
        Listing(name="mnist", summary="70,000 handwritten digits, 28 x 28", files=images.MNIST),
        Listing(
            name="cifar10",
            summary="60,000 colour images, 32 x 32, 10 classes",
            files=images.CIFAR10,
        ),
        Listing(
            name="cifar100",
            summary="60,000 colour images, 32 x 32, 100 classes",
            files=images.CIFAR100,
        ),
        Listing(name="digits", summary="1,797 handwritten digits, 8 x 8", make=builtin.digits),
        Listing(
            name="breast-cancer", summary="569 tumours, 30 measurements", make=builtin.breast_cancer
        ),
        Listing(
            name="synthetic",
            summary="Gaussian clouds of any size, from a seed",
            make=builtin.synthetic,
        ),
        Listing(
            name="strokes",
            summary="digits drawn from splines, 28 x 28, any number, from a seed",
            make=strokes.strokes,
        ),
    )
}


def listing(name: str) -> Listing:
    """The data set of that name; an unknown one is refused with the nearest that exist.

    >>> listing("heart").summary[:17]
    'UCI Heart Disease'
    >>> listing("hart")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: data = 'hart': unknown; did you mean heart or heart-full? there are ...
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if Path(name).is_file():
        raise InputError(f"data = {name!r}: is a file; name the folder with a file for each client")
    raise InputError(
        f"data = {name!r}: unknown; {meant(name, CATALOGUE)}there are {', '.join(CATALOGUE)}, "
        "or a folder with a file for each client"
    )


def load_dataset(name: str | Path, *, folder: Path | None = None, **options: Any) -> Dataset:
    """A data set by name, or the user's own by its folder. Files are verified as they are read.

    ``options`` are those of the set: ``split`` (the seed of the test split) for the small ones,
    sizes for ``synthetic`` and ``strokes``, ``labels`` (fine or coarse) for CIFAR-100, ``classes``,
    ``unit`` and others for a folder.

    >>> print(load_dataset("heart"))
    heart: 490 + 250 records (13,), 2 classes
    """
    # A name of the catalogue is never taken for a folder that happens to be called so.
    if str(name) and str(name) not in CATALOGUE and Path(name).is_dir():
        return call_with_options(partial(user_folder.read_folder, Path(name)), options, str(name))
    found = listing(str(name))
    if found.make is not None:
        return call_with_options(found.make, options, found.name)
    assert found.files is not None
    home = data_folder() if folder is None else folder
    place = found.files.place(home)
    if place is None:
        raise DataError(
            f"{found.name}: is not in {home} ({VARIABLE} names another folder); "
            f"get it with: pacdp data get {found.name}"
        )
    pixels = found.files.read(place)
    return call_with_options(partial(found.files.dataset, pixels), options, found.name)


def call_with_options(make: Callable[..., T], options: dict[str, Any], name: str) -> T:
    """What ``make`` gives with these options; one that it does not take is refused by name."""
    parameters = inspect.signature(make).parameters.values()
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise InputError(
            f"{name}: has no option {unknown[0]}; there are {', '.join(allowed) or 'none'}"
        )
    return make(**options)
