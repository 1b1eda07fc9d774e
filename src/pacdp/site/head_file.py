"""The head of the ledger on another medium, which tells a restored older copy from the newest.

A backup of a ledger gives back budget that was spent since, and rounds that were answered could be
answered again with other noise. So the newest head is kept in a second file, best on another disk
or another machine. It is written before any reply leaves: whatever was sent, its head is known.
"""

import os
import re
from pathlib import Path

from pacdp.errors import InputError


class HeadFile:
    """A text file with the newest head of a ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: str | None = None

    def read(self) -> str:
        """Return the head; raise InputError if the file is missing or holds something else."""
        try:
            text = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeError):
            raise InputError(
                f"{self.path}: cannot be read; it holds the newest head of the ledger, which pacdp "
                "site accept writes first. If its medium is lost and the ledger is certainly the "
                "newest copy, write the head that pacdp ledger show prints into it"
            ) from None
        if not re.fullmatch("[0-9a-f]{64}", text):
            raise InputError(f"{self.path}: must hold the 64 hexadecimal digits of a head")
        return text

    def write(self, head: str) -> None:
        """Replace the head, and return once it is on the disk."""
        if head == self._written:
            return
        beside = self.path.with_name(f".{self.path.name}.new")
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(f"{head}\n")
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._written = head
