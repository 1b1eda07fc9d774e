"""The newest head of the ledger, kept on separate storage to detect a restored older copy.

Restoring a backup of a ledger would also restore budget that has been spent since, and answered
rounds could be answered again with fresh noise. So the newest head is kept in a second file,
preferably on another disk or machine. It is written before a reply is sent, so it covers every
reply that ever left the site.
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
                f"{self.path}: cannot be read; pacdp site accept creates it, with the newest head "
                "of the ledger. If it was lost and the ledger is certainly the newest copy, write "
                "the head that pacdp ledger show prints into a new one"
            ) from None
        if not re.fullmatch("[0-9a-f]{64}", text):
            raise InputError(f"{self.path}: must contain the 64 hexadecimal digits of a head")
        return text

    def write(self, head: str) -> None:
        """Replace the head, and return once it is on disk."""
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
