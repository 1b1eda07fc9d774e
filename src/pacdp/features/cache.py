"""A cache on disk for extractors and features, all of which can be computed again.

Files are written atomically, and damaged ones are replaced. The features of private records are
cached, too, so the folder is as private as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from pacdp.data.storage import data_folder, exclusive_lock, sync
from pacdp.errors import DataError

VARIABLE = "PACDP_CACHE_DIR"

Content = TypeVar("Content")


class DamagedFileError(Exception):
    """A cached file cannot be read or does not fit, and must be computed again."""


def read_or_make(
    name: str, *, read: Callable[[Path], Content], make: Callable[[Path], None]
) -> Content:
    """Read a file of the cache; if it is missing or damaged, one process makes it.

    ``make`` writes the file to the path that it is given, and ``read`` reads it from there.

    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {VARIABLE: tempfile.mkdtemp()}):
    ...     read_or_make("a", read=Path.read_text, make=lambda path: print(path.write_text("b")))
    1
    'b'
    """
    path = _cache_folder() / name
    with _explain_disk_errors(path):
        # Before locking, because a cache on a read-only disk can still be read.
        content = _try_reading(path, read)
        if content is not None:
            return content
        with exclusive_lock(path):
            content = _try_reading(path, read)
            if content is None:
                new = path.with_name(f".{name}.new")
                try:
                    make(new)
                    # After a power failure the name must not belong to an empty file.
                    sync(new)
                    new.replace(path)
                finally:
                    new.unlink(missing_ok=True)
                content = read(path)
    return content


def _try_reading(path: Path, read: Callable[[Path], Content]) -> Content | None:
    try:
        return read(path)
    except (FileNotFoundError, DamagedFileError):
        return None


@contextmanager
def _explain_disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise DataError(
            f"{path}: cannot be read or written ({why}); {VARIABLE} must name a folder that can"
        ) from error


def _cache_folder() -> Path:
    """Return the folder in ``PACDP_CACHE_DIR``, or in the user's cache folder."""
    home = data_folder(VARIABLE)
    folder = home / "representations"
    with _explain_disk_errors(folder):
        home.mkdir(parents=True, exist_ok=True)
        # Features of private records must not be readable by other users.
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
