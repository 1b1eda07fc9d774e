"""Writing files safely: whole or not at all, and never over an existing one."""

from pathlib import Path

from pacdp.errors import InputError


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a file atomically: after a crash it holds the old or the new text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, "complete")
    >>> path.read_text()
    'complete'
    """
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def require_new_file(path: Path) -> Path:
    """Return the path; raise InputError if it exists already or its folder does not exist."""
    if path.exists():
        raise InputError(f"{path}: exists already; choose another path, or remove it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist")
    return path
