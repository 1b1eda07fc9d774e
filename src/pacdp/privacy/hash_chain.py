"""An append-only, hash-chained file of text entries that survives a crash: one SQLite file.

It knows nothing of privacy. What it promises:

- :meth:`HashChain.append` returns only after its entries are committed and synced to the disk.
  SQLite runs with a rollback journal and ``synchronous=EXTRA``: in any lesser mode a power cut can bring
  back the journal of a finished transaction, and with it an older state of the file.
- What an appender decides on is what is in the file: it holds the write lock from before it reads
  until its entries are in. Two processes cannot both take the last of anything.
- What was written is read back before it is committed. A trigger that drops, rewrites or adds
  entries makes the append fail and leaves the file as it was.
- A file that is damaged, truncated, edited or not ours is refused by name. Each entry's hash covers
  the one before, so a change to any entry changes the head.

The chain guards against damage and careless edits. Someone who can write the file can also rewrite
it from the start, or put back an older copy; that shows only to those who know a later head.
"""

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pacdp.errors import LedgerError, PacdpError

GENESIS = "0" * 64
APPLICATION_ID = 0x50414344  # "PACD"
FORMAT = 1
# How long to wait for another process that holds the file.
BUSY_SECONDS = 60.0

# Rows of sqlite_master, in the order of their names: type, name, table and the statement.
_SCHEMA = [
    (
        "table",
        "entries",
        "entries",
        "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, previous TEXT NOT NULL, "
        "body TEXT NOT NULL, hash TEXT NOT NULL)",
    ),
    (
        "trigger",
        "entries_are_never_deleted",
        "entries",
        "CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    ),
    (
        "trigger",
        "entries_are_never_updated",
        "entries",
        "CREATE TRIGGER entries_are_never_updated BEFORE UPDATE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    ),
]


@dataclass(frozen=True)
class Link:
    """One entry: its place, the hash of the one before, its text, and its own hash."""

    sequence: int
    previous: str
    body: str
    hash: str

    @classmethod
    def after(cls, last: "Link | None", body: str) -> "Link":
        sequence, previous = (last.sequence + 1, last.hash) if last else (1, GENESIS)
        text = f"{sequence}\n{previous}\n{body}"
        return cls(sequence, previous, body, hashlib.sha256(text.encode()).hexdigest())


class HashChain:
    """The file at ``path``, opened anew for each operation, so that nothing is held between."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, body: str) -> "HashChain":
        """Make the file with its first entry. An existing file is never touched."""
        chain = cls(path)
        try:
            # Ours alone or not at all; SQLite itself would happily open what is there.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise LedgerError(f"{path}: exists already; a ledger is created once") from None
        except OSError as error:
            raise LedgerError(f"{path}: cannot be created: {error.strerror}") from None
        try:
            with chain._connection() as connection:
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                for *_, statement in _SCHEMA:
                    connection.execute(statement)
                first = Link.after(None, body)
                _insert(connection, [first])
                # Another process may have opened the new file first and added something to it.
                chain._check_layout(connection)
                chain._check_written(connection, [first])
                connection.execute("COMMIT")
        except LedgerError:
            path.unlink(missing_ok=True)
            raise
        return chain

    def read(self) -> list[Link]:
        """Every entry, after checking the whole file."""
        self._check_file()
        with self._connection() as connection:
            connection.execute("BEGIN")
            self._check_layout(connection)
            return self._verified(connection)

    def append(self, last: Link, decide: Callable[[Sequence[Link]], Sequence[str]]) -> list[Link]:
        """Add what ``decide`` answers to the entries that came after ``last``.

        ``last`` is the newest entry that the caller knows. Returns all entries since, the new ones
        at the end, once they are on the disk. If ``decide`` raises, or if reading the new entries
        back gives anything else, nothing is written.
        """
        self._check_file()
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            # The file may have changed since it was opened; under the write lock it no longer can.
            self._check_layout(connection)
            seen = _select(connection, last.sequence)
            if not seen or seen[0] != last:
                raise LedgerError(
                    f"{self.path}: entry {last.sequence} is no longer what it was: "
                    "an older or another copy has been put in its place"
                )
            missed = self._linked(seen[1:], last)
            added: list[Link] = []
            for body in decide(missed):
                added.append(Link.after((missed + added or [last])[-1], body))
            _insert(connection, added)
            self._check_written(connection, [last, *missed, *added])
            connection.execute("COMMIT")
            return missed + added

    def _check_layout(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that is not a ledger of this format, with its tables and nothing else.

        This is cheap, however long the chain is.
        """
        application, version = (
            connection.execute(f"PRAGMA main.{name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if application != APPLICATION_ID:
            raise LedgerError(f"{self.path}: is a database, but not a pacdp ledger")
        if version != FORMAT:
            raise LedgerError(
                f"{self.path}: has ledger format {version}, this version reads {FORMAT}"
            )
        # Temporary objects belong to this connection alone, but they too could intercept a write.
        objects = connection.execute(
            "SELECT type, name, tbl_name, sql FROM main.sqlite_master UNION ALL "
            "SELECT type, name, tbl_name, sql FROM sqlite_temp_master ORDER BY name"
        )
        if objects.fetchall() != _SCHEMA:
            raise LedgerError(f"{self.path}: is damaged: its tables are not those of a ledger")

    def _check_written(self, connection: sqlite3.Connection, meant: Sequence[Link]) -> None:
        """Refuse to commit unless the entries from the first of ``meant`` on equal ``meant``."""
        if _select(connection, meant[0].sequence) != meant:
            raise LedgerError(
                f"{self.path}: did not take the new entries as they were written; nothing was added"
            )

    def _verified(self, connection: sqlite3.Connection) -> list[Link]:
        found = connection.execute("PRAGMA main.integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise LedgerError(f"{self.path}: is damaged: {str(found).splitlines()[-1]}")
        links = self._linked(_select(connection, 0), None)
        if not links:
            raise LedgerError(f"{self.path}: is damaged: it has no entries")
        return links

    def _linked(self, links: Sequence[Link], last: Link | None) -> list[Link]:
        for link in links:
            if link != Link.after(last, link.body):
                place = last.sequence + 1 if last else 1
                raise LedgerError(f"{self.path}: is damaged: entry {place} breaks the hash chain")
            last = link
        return list(links)

    def _check_file(self) -> None:
        """Refuse what SQLite would misread, without opening the file.

        Closing any handle to a file drops all locks that this process holds on it, also those of a
        transaction in another thread: nobody but SQLite may open it.
        """
        try:
            found = self.path.stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise LedgerError(f"{self.path}: cannot be read: {reason}") from None
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(f"{self.path}: is not a file")
        if not found.st_size:
            # SQLite takes an empty file for an empty database.
            raise LedgerError(f"{self.path}: is not a pacdp ledger (the file is empty)")
        if found.st_nlink > 1:
            # The journal of a crash is found by the name of the file, so it must have only one.
            raise LedgerError(
                f"{self.path}: has {found.st_nlink} names (hard links), must have one"
            )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # An auditor may hold a copy that cannot be written; it can still be read.
        mode = "rw" if os.access(self.path, os.W_OK) else "ro"
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            # Closing without COMMIT rolls back.
            with closing(connection):
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
                connection.execute("PRAGMA journal_mode = DELETE")
                yield connection
        except PacdpError:
            raise
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            if "not a database" in str(error):
                raise LedgerError(f"{self.path}: is not a pacdp ledger") from error
            raise LedgerError(f"{self.path}: cannot be used: {error}") from error


def _select(connection: sqlite3.Connection, sequence: int) -> list[Link]:
    rows = connection.execute(
        "SELECT sequence, previous, body, hash FROM main.entries "
        "WHERE sequence >= ? ORDER BY sequence",
        (sequence,),
    )
    return [Link(*row) for row in rows]


def _insert(connection: sqlite3.Connection, links: Sequence[Link]) -> None:
    connection.executemany(
        "INSERT INTO main.entries VALUES (?, ?, ?, ?)",
        [(link.sequence, link.previous, link.body, link.hash) for link in links],
    )
