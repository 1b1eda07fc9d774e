"""An append-only, hash-chained file of text entries that survives a crash: one SQLite file.

It knows nothing of privacy. What it promises:

- :meth:`HashChain.append` returns only after its entries are committed and synced to the disk.
  SQLite runs with a rollback journal and ``synchronous=EXTRA``: in any weaker mode a power cut can
  bring back the journal of a finished transaction, and with it an older state of the file.
- A decision to append is based on what is in the file: the write lock is held from before the file
  is read until the new entries are in. Two processes cannot both spend the same budget.
- What was written is read back before it is committed. A trigger that drops, rewrites or adds
  entries makes the append fail and leaves the file as it was.
- A file that is damaged, truncated, edited or not a ledger is refused by name. Each entry's hash
  covers the one before, so a change to any entry changes the head.
- The bytes of a reply (:mod:`pacdp.privacy.reply_table`) are written in the same transaction as the
  entry that names their hash.

The chain protects against damage and careless edits. Someone who can write the file can also
rewrite it from the start, or put back an older copy; only those who know a later head can tell.
"""

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from pacdp.errors import LedgerError, PacdpError, StaleLedgerError
from pacdp.privacy import reply_table
from pacdp.privacy.reply_table import StoredReply

GENESIS = "0" * 64
APPLICATION_ID = 0x50414344  # "PACD"
# A new file has the first format. The table of replies is added when it is first needed.
FORMAT, FORMAT_WITH_REPLIES = 1, 2
# How long to wait for another process that holds the file.
BUSY_SECONDS = 60.0

_CREATE_TABLE = (
    "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, previous TEXT NOT NULL, "
    "body TEXT NOT NULL, hash TEXT NOT NULL)"
)
# A row of sqlite_master: type, name, table and the statement.
SchemaRow = tuple[str, str, str, str | None]


def _append_only_table(name: str, statement: str) -> list[SchemaRow]:
    """Return the schema of a table whose rows can never be changed or deleted."""
    rows: list[SchemaRow] = [("table", name, name, statement)]
    for change, event in (("deleted", "DELETE"), ("updated", "UPDATE")):
        trigger = f"{name}_are_never_{change}"
        guard = (
            f"CREATE TRIGGER {trigger} BEFORE {event} ON {name} "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )
        rows.append(("trigger", trigger, name, guard))
    return rows


_ENTRIES = _append_only_table("entries", _CREATE_TABLE)
_REPLIES = _append_only_table("replies", reply_table.CREATE_TABLE)
# SQLite creates the index for UNIQUE, without a statement.
_INDEX: SchemaRow = ("index", "sqlite_autoindex_replies_1", "replies", None)
# The objects of each format, in the order of their names.
_SCHEMAS = {FORMAT: _ENTRIES, FORMAT_WITH_REPLIES: [*_ENTRIES, *_REPLIES, _INDEX]}


@dataclass(frozen=True)
class Link:
    """One entry: its place, the hash of the one before, its text, and its own hash."""

    sequence: int
    previous: str
    body: str
    hash: str

    @classmethod
    def after(cls, last: "Link | None", body: str) -> "Link":
        """Make the entry that follows ``last``."""
        sequence, previous = (last.sequence + 1, last.hash) if last else (1, GENESIS)
        text = f"{sequence}\n{previous}\n{body}"
        return cls(sequence, previous, body, hashlib.sha256(text.encode()).hexdigest())


class HashChain:
    """The file at ``path``, opened anew for each operation, so that nothing is held between."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, body: str) -> "HashChain":
        """Create the file with its first entry. An existing file is never touched."""
        chain = cls(path)
        try:
            # SQLite itself would open a file that exists already.
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
                _create(connection, _ENTRIES)
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

    def read(
        self, check: Callable[[Sequence[Link], Iterator[StoredReply]], None] | None = None
    ) -> list[Link]:
        """Check the whole file, and return every entry.

        ``check`` is called with the entries and the replies, and may raise an error.
        """
        self._check_file()
        with self._connection() as connection:
            connection.execute("BEGIN")
            version = self._check_layout(connection)
            integrity = connection.execute("PRAGMA main.integrity_check(1)").fetchone()[0]
            if integrity != "ok":
                raise self._damaged(str(integrity).splitlines()[-1])
            links = self._check_links(_select(connection, 0), None)
            if not links:
                raise self._damaged("it has no entries")
            if check is not None:
                with_replies = version == FORMAT_WITH_REPLIES
                check(links, reply_table.iterate_replies(connection) if with_replies else iter(()))
            return links

    def read_reply(self, run: str, number: int) -> StoredReply | None:
        """Return the reply that is stored for a round of a run; None if there is none."""
        self._check_file()
        with self._connection() as connection:
            connection.execute("BEGIN")
            if self._check_layout(connection) == FORMAT:
                return None
            return reply_table.select_reply(connection, run, number)

    def append(
        self,
        last: Link,
        decide: Callable[[Sequence[Link]], Sequence[str]],
        *,
        reply: StoredReply | None = None,
        with_replies: bool = False,
    ) -> list[Link]:
        """Append the entries that ``decide`` returns for those that came after ``last``.

        ``last`` is the newest entry that the caller knows. Returns all entries since, the new ones
        at the end, once they are on the disk. If ``decide`` raises, or if reading the new entries
        back gives anything else, nothing is written. A ``reply`` is stored in the same transaction;
        with it, or ``with_replies``, the file gets the table of replies if it has none yet.
        """
        self._check_file()
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            # The file may have changed since it was opened; under the write lock it no longer can.
            version = self._check_layout(connection)
            present = _select(connection, last.sequence)
            if not present or present[0] != last:
                raise StaleLedgerError(
                    f"{self.path}: entry {last.sequence} is no longer what it was: "
                    "an older or another copy has been put in its place"
                )
            missed = self._check_links(present[1:], last)
            added: list[Link] = []
            for body in decide(missed):
                added.append(Link.after((missed + added or [last])[-1], body))
            if version == FORMAT and (reply is not None or with_replies):
                _create(connection, _REPLIES)
                connection.execute(f"PRAGMA user_version = {FORMAT_WITH_REPLIES}")
                self._check_layout(connection)
            _insert(connection, added)
            if reply is not None:
                self._store(connection, reply)
            self._check_written(connection, [last, *missed, *added])
            connection.execute("COMMIT")
            return missed + added

    def _store(self, connection: sqlite3.Connection, reply: StoredReply) -> None:
        """Add a reply, and refuse to commit unless exactly this one was added."""
        before = reply_table.count_replies(connection)
        reply_table.insert_reply(connection, reply)
        present = reply_table.select_reply(connection, reply.run, reply.round)
        if present != reply or reply_table.count_replies(connection) != before + 1:
            raise LedgerError(f"{self.path}: did not store the reply as written; nothing was added")

    def _damaged(self, reason: str) -> LedgerError:
        return LedgerError(f"{self.path}: is damaged: {reason}")

    def _check_layout(self, connection: sqlite3.Connection) -> int:
        """Refuse a file that is not a ledger of a known format, with its tables and nothing else.

        Returns the format. This is cheap, however long the chain is.
        """
        application, version = (
            connection.execute(f"PRAGMA main.{name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if application != APPLICATION_ID:
            raise LedgerError(f"{self.path}: is a database, but not a pacdp ledger")
        if version not in _SCHEMAS:
            known = " and ".join(map(str, _SCHEMAS))
            raise LedgerError(
                f"{self.path}: has ledger format {version}, this version reads {known}"
            )
        # Temporary objects belong to this connection alone, but they too could intercept a write.
        objects = connection.execute(
            "SELECT type, name, tbl_name, sql FROM main.sqlite_master UNION ALL "
            "SELECT type, name, tbl_name, sql FROM sqlite_temp_master ORDER BY name"
        )
        if objects.fetchall() != _SCHEMAS[version]:
            raise self._damaged("its tables are not those of a ledger")
        return int(version)

    def _check_written(self, connection: sqlite3.Connection, expected: Sequence[Link]) -> None:
        """Refuse to commit unless the file ends with exactly the ``expected`` entries."""
        if _select(connection, expected[0].sequence) != expected:
            raise LedgerError(
                f"{self.path}: did not take the new entries as they were written; nothing was added"
            )

    def _check_links(self, links: list[Link], last: Link | None) -> list[Link]:
        """Refuse entries that do not continue the chain after ``last``."""
        for link in links:
            if link != Link.after(last, link.body):
                number = last.sequence + 1 if last else 1
                raise self._damaged(f"entry {number} breaks the hash chain")
            last = link
        return links

    def _check_file(self) -> None:
        """Refuse files that SQLite would misread, without opening them.

        Closing any handle to a file drops all locks that this process holds on it, including those
        of a transaction in another thread: only SQLite may open it.
        """
        try:
            status = self.path.stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise LedgerError(f"{self.path}: cannot be read: {reason}") from None
        if not stat.S_ISREG(status.st_mode):
            raise LedgerError(f"{self.path}: is not a file")
        if not status.st_size:
            # SQLite takes an empty file for an empty database.
            raise LedgerError(f"{self.path}: is not a pacdp ledger (the file is empty)")
        if status.st_nlink > 1:
            # The journal of a crash is found by the name of the file, so it must have only one.
            raise LedgerError(
                f"{self.path}: has {status.st_nlink} names (hard links), must have one"
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
    """Read the entries from this number on."""
    rows = connection.execute(
        "SELECT sequence, previous, body, hash FROM main.entries "
        "WHERE sequence >= ? ORDER BY sequence",
        (sequence,),
    )
    return [Link(*row) for row in rows]


def _create(connection: sqlite3.Connection, objects: Sequence[SchemaRow]) -> None:
    for *_, statement in objects:
        assert statement is not None
        connection.execute(statement)


def _insert(connection: sqlite3.Connection, links: Sequence[Link]) -> None:
    connection.executemany("INSERT INTO main.entries VALUES (?, ?, ?, ?)", map(astuple, links))
