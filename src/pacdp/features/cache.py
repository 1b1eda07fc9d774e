"""Where maps and what they answer are kept, until somebody needs the room: all can be made again.

A file is in its place whole or not at all, and what is damaged all the same is made anew. What a
map answers to private records is kept as well, so the folder is as private as they are.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import platformdirs
from safetensors import SafetensorError

from pacdp.data.storage import exclusive_lock
from pacdp.errors import DataError

VARIABLE = "PACDP_CACHE_DIR"

Content = TypeVar("Content")


class DamagedError(Exception):
    """A file that is not what was written, or that does not fit; it is made again."""


def kept(name: str, *, read: Callable[[Path], Content], make: Callable[[Path], None]) -> Content:
    """What the file of that name holds; one process makes it where there is none, others wait.

    ``make`` writes it to the path that it is given, and ``read`` reads it from there.

    >>> import tempfile
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {VARIABLE: tempfile.mkdtemp()}):
    ...     kept("a", read=Path.read_text, make=lambda path: print(path.write_text("b")))
    1
    'b'
    """
    path = _folder() / name
    with _one_line(path):
        # Before any lock: where nothing may be written, what is there can still be read.
        found = _whole(path, read)
        if found is not None:
            return found
        with exclusive_lock(path):
            found = _whole(path, read)
            if found is None:
                beside = path.with_name(f".{name}.new")
                try:
                    make(beside)
                    _sync(beside)
                    beside.replace(path)
                finally:
                    beside.unlink(missing_ok=True)
                found = read(path)
    return found


def _whole(path: Path, read: Callable[[Path], Content]) -> Content | None:
    """What a file holds; None where it is missing or damaged."""
    try:
        return read(path)
    except (FileNotFoundError, DamagedError):
        return None


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What a disk refuses, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise DataError(
            f"{path}: cannot be read or written ({why}); {VARIABLE} must name a folder that can"
        ) from error


def _sync(path: Path) -> None:
    # A name that outlives a power cut must not be that of an empty file.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _folder() -> Path:
    """``PACDP_CACHE_DIR``, or the user's cache folder: what can be computed again."""
    named = os.environ.get(VARIABLE)
    home = Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("pacdp"))
    folder = home / "representations"
    with _one_line(folder):
        home.mkdir(parents=True, exist_ok=True)
        # What private records look like is nobody else's to read.
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
