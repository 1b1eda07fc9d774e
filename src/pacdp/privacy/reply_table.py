"""The table of sent replies in a ledger file, one for each round of a run.

A site answers each round once, and must be able to send the very same bytes again. They are kept in
the ledger's own file, so that a reply and the entry with its hash are committed together or not at
all. The table came with format 2 of the file; the first use that needs it adds it to older files.
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
    """The bytes that answer a round of a run, and the hash of the broadcast that they answer."""

    run: str
    round: int
    broadcast: str
    content: bytes

    @property
    def hash(self) -> str:
        """The SHA-256 of the bytes; empty where a damaged file holds something else."""
        known = isinstance(self.content, bytes)
        return hashlib.sha256(self.content).hexdigest() if known else ""


def insert_reply(connection: sqlite3.Connection, reply: StoredReply) -> None:
    """Add a reply; a second one for the same round is an error of SQLite."""
    connection.execute("INSERT INTO main.replies VALUES (?, ?, ?, ?)", reply)


def select_reply(connection: sqlite3.Connection, run: str, number: int) -> StoredReply | None:
    """Read the reply of a round; None if there is none."""
    row = connection.execute(
        "SELECT run, round, broadcast, content FROM main.replies WHERE run = ? AND round = ?",
        (run, number),
    ).fetchone()
    return None if row is None else StoredReply(*row)


def iterate_replies(connection: sqlite3.Connection) -> Iterator[StoredReply]:
    """Read all replies, one at a time: together they may be large."""
    rows = connection.execute("SELECT run, round, broadcast, content FROM main.replies")
    return (StoredReply(*row) for row in rows)


def count_replies(connection: sqlite3.Connection) -> int:
    """Count the replies."""
    return int(connection.execute("SELECT count(*) FROM main.replies").fetchone()[0])
