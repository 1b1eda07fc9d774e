"""Atomic writing of files."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: an interruption leaves either the old file or the new one.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, "complete")
    >>> path.read_text()
    'complete'
    """
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
