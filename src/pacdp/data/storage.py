"""Where data sets are kept, and how files get there: whole, or not at all."""

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
# No file of any data set here is larger; an archive that says otherwise is not what it claims.
LARGEST_MEMBER = 2**29


def data_folder() -> Path:
    """``PACDP_DATA_DIR``, or the user's cache folder.

    >>> isinstance(data_folder(), Path)
    True
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("pacdp"))


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of ``target`` when all went well.

    Whatever goes wrong, ``target`` is as it was and nothing is left beside it but a lock; what a
    killed process left is removed by the next. One process at a time writes.

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
        for left in (folder, old):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            for path in folder.iterdir():
                _sync(path)
            if target.exists():
                target.rename(old)
            try:
                folder.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
            _sync(target.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def exclusive_lock(target: Path) -> Iterator[None]:
    """Wait until no other process works on ``target``.

    The lock file stays: taking it away would let in two who wait for two files of one name.
    """
    lock = target.with_name(f".{target.name}.lock")
    with FileLock(lock):
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_files(source: Path, names: Collection[str]) -> Iterator[dict[str, Path]]:
    """Those of the named files that ``source`` holds: a folder, or an archive of any depth.

    Of an archive only the named files are unpacked, under their bare names, into a folder that is
    gone afterwards: no path inside it is believed, and nothing in it is ever run.
    """
    if source.is_dir():
        paths = [path for path in sorted(source.rglob("*")) if path.name in names]
        yield {path.name: path for path in paths if path.is_file()}
        return
    if not source.is_file():
        raise DataError(f"{source}: does not exist, must be a folder or an archive")
    with tempfile.TemporaryDirectory(prefix="pacdp-") as scratch:
        yield _unpacked(source, names, Path(scratch))


def _unpacked(source: Path, names: Collection[str], folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                for info in archive.infolist():
                    name = Path(info.filename).name
                    if name in names and not info.is_dir():
                        with archive.open(info) as stream:
                            found[name] = _copied(stream, folder / name, source)
        elif tarfile.is_tarfile(source):
            with tarfile.open(source) as archive:
                for member in archive:
                    name = Path(member.name).name
                    wanted = name in names and member.isreg()
                    content = archive.extractfile(member) if wanted else None
                    if content is not None:
                        found[name] = _copied(content, folder / name, source)
        elif source.name in names:
            found[source.name] = source
        else:
            raise DataError(f"{source}: is neither a folder, a zip nor a tar archive")
    except (DataError, OSError):
        raise
    except Exception:  # a damaged archive can fail in any way, and the error may quote its bytes
        raise DataError(f"{source}: is damaged, cannot be unpacked") from None
    return found


def _copied(stream: IO[bytes], target: Path, source: Path) -> Path:
    with target.open("wb") as out:
        while part := stream.read(2**20):
            out.write(part)
            if out.tell() > LARGEST_MEMBER:
                raise DataError(f"{source}: {target.name} is larger than any file of a data set")
    return target
