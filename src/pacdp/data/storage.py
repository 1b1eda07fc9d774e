"""The data folder, atomic replacement of folders, and reading files from archives."""

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import platformdirs
from filelock import FileLock

from pacdp.errors import DataError

VARIABLE = "PACDP_DATA_DIR"
# Every file of the supported data sets is smaller; a larger one cannot be genuine.
LARGEST_MEMBER = 2**29


def data_folder(variable: str = VARIABLE) -> Path:
    """Return the folder in an environment variable, or the user's cache folder.

    >>> isinstance(data_folder(), Path)
    True
    """
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("pacdp"))


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into, which replaces ``target`` if the block succeeds.

    If it fails, ``target`` is unchanged and only a lock file is left beside it. The remains of a
    killed process are removed by the next one. Only one process at a time can write.

    >>> place = Path(tempfile.mkdtemp()) / "set"
    >>> with replace_folder(place) as folder:
    ...     written = (folder / "a").write_bytes(b"1")
    >>> [path.name for path in place.iterdir()]
    ['a']
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(target):
        folder, old = (target.with_name(f".{target.name}-{end}") for end in ("new", "old"))
        if old.exists() and not target.exists():
            old.rename(target)
        for path in (folder, old):
            shutil.rmtree(path, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            for path in folder.iterdir():
                sync(path)
            if target.exists():
                target.rename(old)
            try:
                folder.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
            sync(target.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def exclusive_lock(target: Path) -> Iterator[None]:
    """Wait until no other process works on ``target``.

    The lock file is never removed: two processes could otherwise hold two locks of the same name.
    """
    with FileLock(target.with_name(f".{target.name}.lock")):
        yield


@contextmanager
def refuse_damaged(message: str, *expected: type[Exception]) -> Iterator[None]:
    """Replace any other error by a :class:`DataError`.

    A damaged file can make its parser fail in any way, and the error could quote its bytes.

    >>> with refuse_damaged("a.png: is damaged"):
    ...     int("secret")
    Traceback (most recent call last):
    ...
    pacdp.errors.DataError: a.png: is damaged
    """
    allowed: tuple[type[Exception], ...] = (DataError, *expected)
    try:
        yield
    except allowed:
        raise
    except Exception:
        raise DataError(message) from None


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_files(source: Path, names: Collection[str]) -> Iterator[dict[str, Path]]:
    """Yield the paths of those of the named files that a folder or an archive holds, at any depth.

    Only the named files of an archive are unpacked, under their bare names, into a temporary
    folder. Paths inside the archive are not used, and nothing in it is run.
    """
    if source.is_dir():
        paths = [path for path in sorted(source.rglob("*")) if path.name in names]
        yield {path.name: path for path in paths if path.is_file()}
        return
    if not source.is_file():
        raise DataError(f"{source}: does not exist, must be a folder or an archive")
    with tempfile.TemporaryDirectory(prefix="pacdp-") as scratch:
        yield _unpack(source, names, Path(scratch))


def _unpack(source: Path, names: Collection[str], folder: Path) -> dict[str, Path]:
    unpacked: dict[str, Path] = {}
    with refuse_damaged(f"{source}: is damaged, cannot be unpacked", OSError):
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                for info in archive.infolist():
                    name = Path(info.filename).name
                    if name in names and not info.is_dir():
                        unpacked[name] = _copy(archive.open(info), folder / name, source)
        elif tarfile.is_tarfile(source):
            with tarfile.open(source) as tar:
                for member in tar:
                    name = Path(member.name).name
                    stream = tar.extractfile(member) if name in names and member.isreg() else None
                    if stream is not None:
                        unpacked[name] = _copy(stream, folder / name, source)
        elif source.name in names:
            unpacked[source.name] = source
        else:
            raise DataError(f"{source}: is neither a folder, a zip nor a tar archive")
    return unpacked


def _copy(stream: IO[bytes], target: Path, source: Path) -> Path:
    with stream, target.open("wb") as out:
        while part := stream.read(2**20):
            out.write(part)
            if out.tell() > LARGEST_MEMBER:
                raise DataError(f"{source}: {target.name} is larger than any file of a data set")
    return target
