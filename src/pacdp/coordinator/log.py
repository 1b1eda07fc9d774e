"""The log of a run: every broadcast and every answer, in one SQLite file.

A broadcast is committed before it is sent, and a reply when it arrives. The state of the server is
derived from the log: a coordinator that was killed replays it and continues, and anyone who has the
log can recompute the model.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pacdp.errors import DataError
from pacdp.experiments.results import Traffic
from pacdp.federation import Plan, RoundResult

_SCHEMA = """
CREATE TABLE run (run TEXT NOT NULL, plan TEXT NOT NULL, failure TEXT);
CREATE TABLE broadcasts (round INTEGER PRIMARY KEY, frame BLOB NOT NULL);
CREATE TABLE answers (
    round INTEGER NOT NULL, client INTEGER NOT NULL, code TEXT, frame BLOB NOT NULL,
    PRIMARY KEY (round, client)
);
CREATE TABLE closed (round INTEGER PRIMARY KEY);
CREATE TABLE results (round INTEGER PRIMARY KEY, result TEXT NOT NULL);
"""


class RunLog:
    """The log of one run of one plan, identified by its digest.

    >>> import tempfile
    >>> log = RunLog(Path(tempfile.mkdtemp()) / "run.db", run="heart", digest="0" * 64)
    >>> log.add_broadcast(0, b"model")
    >>> log.add_reply(0, 2, b"update")
    >>> log.is_closed(0), log.answers(0)
    (False, {2: b'update'})
    """

    def __init__(self, path: Path, *, run: str, digest: str) -> None:
        self.path = path
        with self._open() as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                # In one transaction, so that no file has only some of the tables.
                database.executescript(f"BEGIN;{_SCHEMA}")
                database.execute("INSERT INTO run VALUES (?, ?, NULL)", (run, digest))
            known = database.execute("SELECT run, plan FROM run").fetchone()
        if known != (run, digest):
            raise DataError(f"{path}: is the log of another plan; must be that of {run}")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, which is on disk when the context exits."""
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as database:
                database.execute("PRAGMA synchronous = EXTRA")
                with database:
                    yield database
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path}: cannot be used as the log of a run ({error})") from None

    def find_broadcast(self, number: int) -> bytes | None:
        """Return the broadcast of a round; None if there is none yet."""
        with self._open() as database:
            row = database.execute(
                "SELECT frame FROM broadcasts WHERE round = ?", (number,)
            ).fetchone()
        return None if row is None else row[0]

    def add_broadcast(self, number: int, frame: bytes) -> None:
        """Add the broadcast of a round, before it is sent."""
        with self._open() as database:
            database.execute("INSERT INTO broadcasts VALUES (?, ?)", (number, frame))

    def answers(self, number: int) -> dict[int, bytes]:
        """Return the answers to a round, by client."""
        with self._open() as database:
            rows = database.execute(
                "SELECT client, frame FROM answers WHERE round = ? ORDER BY client", (number,)
            )
            return dict(rows.fetchall())

    def add_reply(self, number: int, client: int, frame: bytes) -> None:
        """Add the reply of a client, as it arrived."""
        with self._open() as database:
            database.execute("INSERT INTO answers VALUES (?, ?, NULL, ?)", (number, client, frame))

    def is_closed(self, number: int) -> bool:
        """Whether a round is closed, so that no further answers are accepted."""
        with self._open() as database:
            row = database.execute("SELECT 1 FROM closed WHERE round = ?", (number,)).fetchone()
        return row is not None

    def close_round(self, number: int, refusals: Mapping[int, tuple[str, bytes]]) -> None:
        """Close a round; ``refusals`` are the codes and the bytes of its refusals, by client."""
        with self._open() as database:
            database.executemany(
                "INSERT INTO answers VALUES (?, ?, ?, ?)",
                [(number, client, *refusal) for client, refusal in refusals.items()],
            )
            database.execute("INSERT INTO closed VALUES (?)", (number,))

    def results(self) -> list[RoundResult]:
        """Return the results of all evaluated rounds, in order."""
        with self._open() as database:
            rows = database.execute("SELECT result FROM results ORDER BY round").fetchall()
        try:
            return [RoundResult.from_json(json.loads(text)) for (text,) in rows]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{self.path}: the result of a round cannot be read") from None

    def add_result(self, result: RoundResult) -> None:
        """Add the result of a closed round."""
        text = json.dumps(result.to_json(), allow_nan=False)
        with self._open() as database:
            database.execute("INSERT INTO results VALUES (?, ?)", (result.round - 1, text))

    def count_closed(self) -> int:
        """Count the closed rounds."""
        with self._open() as database:
            return int(database.execute("SELECT COUNT(*) FROM closed").fetchone()[0])

    def count_answers(self) -> dict[int, Counter[str]]:
        """Count the answers of each client by code; replies have an empty code."""
        counts: dict[int, Counter[str]] = {}
        with self._open() as database:
            rows = database.execute(
                "SELECT client, IFNULL(code, ''), COUNT(*) FROM answers GROUP BY client, code"
            )
            for client, code, count in rows:
                counts.setdefault(client, Counter())[code] = count
        return counts

    def measure_traffic(self, plan: Plan) -> Traffic:
        """Count messages and bytes; a broadcast counts once for each client of its round."""
        with self._open() as database:
            sent = database.execute("SELECT round, LENGTH(frame) FROM broadcasts").fetchall()
            answers, size = database.execute(
                "SELECT COUNT(*), IFNULL(SUM(LENGTH(frame)), 0) FROM answers"
            ).fetchone()
        asked = {number: len(plan.participants(number)) for number, _ in sent}
        return Traffic(
            broadcasts=sum(asked.values()),
            broadcast_bytes=sum(asked[number] * length for number, length in sent),
            answers=answers,
            answer_bytes=size,
        )

    @property
    def failure(self) -> str | None:
        """Why the run failed; None if it has not."""
        with self._open() as database:
            return database.execute("SELECT failure FROM run").fetchone()[0]

    @failure.setter
    def failure(self, reason: str | None) -> None:
        with self._open() as database:
            database.execute("UPDATE run SET failure = ?", (reason,))
