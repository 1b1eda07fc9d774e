"""Writing files safely: whole or not at all, and never over an existing one."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from pacdp.errors import InputError


def write_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Replace the content of a file atomically: after a crash it holds the old or the new text.

    A ``private`` file is readable only by its owner.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, "complete")
    >>> path.read_text()
    'complete'
    """
    beside = path.with_name(f".{path.name}.new")
    if private:
        beside.unlink(missing_ok=True)
        # Exclusively, so that no link that somebody else has put there is followed.
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def require_new_file(path: Path) -> Path:
    """Return the path; raise InputError if it exists already or its folder does not exist."""
    if path.exists():
        raise InputError(f"{path}: exists already; choose another path, or remove it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist")
    return path


def lock_exclusively(path: Path, message: str) -> FileLock:
    """Lock a file exclusively, until the lock is released or the process exits.

    Raises InputError with the message if another process holds the lock.
    """
    path = path.resolve()
    lock = FileLock(path.with_name(f".{path.name}.lock"), mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{path}: {message}") from None
    return lock
