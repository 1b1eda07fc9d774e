"""Files that are written whole or not at all."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file with this text at once: whoever is stopped leaves the old one or the new.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, "whole")
    >>> path.read_text()
    'whole'
    """
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
