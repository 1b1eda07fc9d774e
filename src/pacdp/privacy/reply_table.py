"""The table of replies in a ledger file, at most one for each round of a run.

A site answers each round once, and must be able to send exactly the same bytes again. They are
stored in the ledger file, so that a reply and the entry with its hash are committed atomically. The
table was introduced with file format 2, and is added to older files when it is first needed.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

CREATE_TABLE = (
    "CREATE TABLE replies (run TEXT NOT NULL, round INTEGER NOT NULL, broadcast TEXT NOT NULL, "
    "content BLOB NOT NULL, UNIQUE (run, round))"
)


class StoredReply(NamedTuple):
    """The reply to a round of a run, and the hash of the broadcast that it answers."""

    run: str
    round: int
    broadcast: str
    content: bytes

    @property
    def hash(self) -> str:
        """The SHA-256 of the content; empty if a damaged file contains anything but bytes."""
        is_intact = isinstance(self.content, bytes)
        return hashlib.sha256(self.content).hexdigest() if is_intact else ""


def insert_reply(connection: sqlite3.Connection, reply: StoredReply) -> None:
    """Add a reply; SQLite raises an error for a second one in the same round."""
    connection.execute("INSERT INTO main.replies VALUES (?, ?, ?, ?)", reply)


def select_reply(connection: sqlite3.Connection, run: str, number: int) -> StoredReply | None:
    """Read the reply of a round; None if there is none."""
    row = connection.execute(
        "SELECT run, round, broadcast, content FROM main.replies WHERE run = ? AND round = ?",
        (run, number),
    ).fetchone()
    return None if row is None else StoredReply(*row)


def iterate_replies(connection: sqlite3.Connection) -> Iterator[StoredReply]:
    """Iterate over all replies without loading them into memory at once."""
    rows = connection.execute("SELECT run, round, broadcast, content FROM main.replies")
    return (StoredReply(*row) for row in rows)


def count_replies(connection: sqlite3.Connection) -> int:
    """Count the replies."""
    return int(connection.execute("SELECT count(*) FROM main.replies").fetchone()[0])
