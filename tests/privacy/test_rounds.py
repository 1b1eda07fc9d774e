"""Rounds that are debited and answered once: entries, stored replies, tampering and crashes."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.errors import BudgetExceededError, InputError, LedgerError, StaleLedgerError
from pacdp.privacy import Adjacency, Guarantee, Release, RoundRequest, SQLiteLedger, calibrate
from pacdp.privacy.hash_chain import HashChain
from pacdp.privacy.reply_table import StoredReply
from tests.privacy.test_ledger import edit
from tests.privacy.test_ledger_tampering import Prepared, execute

BUDGET = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
RELEASE = calibrate(epsilon=0.5, releases=60).release().times(1)
FIRST, OTHER = "1" * 64, "2" * 64
REQUEST = RoundRequest("one", 0, FIRST)
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ledger"


@pytest.fixture
def ledger(path):
    return SQLiteLedger.create(path, client="a", budget=BUDGET)


def version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_round_is_debited_and_answered_once(path, ledger):
    assert ledger.find_round("one", 0) is None
    entries = ledger.reserve(RELEASE, RELEASE.times(2), run="one", request=REQUEST)
    known = SQLiteLedger(path).find_round("one", 0)
    assert known.request == REQUEST
    assert known.releases == (RELEASE, RELEASE.times(2))
    assert known.reply is None
    assert known.head == entries[-1].hash == ledger.head
    assert ledger.store_reply(REQUEST, b"noised") == b"noised"
    again = SQLiteLedger(path)
    assert again.find_round("one", 0).reply is not None
    assert again.read_reply(REQUEST) == b"noised"
    assert again.filter == ledger.filter
    assert again.filter.spent.total() == 3
    assert [entry.kind for entry in again.entries] == ["open", "release", "release", "reply"]
    head = again.head
    for request in (REQUEST, RoundRequest("one", 0, OTHER)):
        with pytest.raises(LedgerError, match="already debited"):
            again.reserve(RELEASE, run="one", request=request)
        with pytest.raises(LedgerError, match="does not await this reply"):
            again.store_reply(request, b"other noise")
    assert SQLiteLedger(path).head == head
    # The same round of another run, and another round of the same one, are others.
    again.reserve(RELEASE, run="two", request=RoundRequest("two", 0, FIRST))
    again.reserve(RELEASE, run="one", request=RoundRequest("one", 1, FIRST))


def test_another_process_is_seen_before_a_round_is_debited(path, ledger):
    other = SQLiteLedger(path)
    other.reserve(RELEASE, run="one", request=REQUEST)
    with pytest.raises(LedgerError, match="already debited"):
        ledger.reserve(RELEASE, run="one", request=REQUEST)
    other.store_reply(REQUEST, b"noised")
    with pytest.raises(LedgerError, match="does not await this reply"):
        ledger.store_reply(REQUEST, b"other noise")
    assert SQLiteLedger(path).filter.spent.total() == 1


def test_a_reply_needs_its_debit(path, ledger):
    with pytest.raises(LedgerError, match="does not await this reply"):
        ledger.store_reply(REQUEST, b"unpaid")
    ledger.reserve(RELEASE, run="one", request=REQUEST)
    with pytest.raises(LedgerError, match="does not await this reply"):
        ledger.store_reply(RoundRequest("one", 0, OTHER), b"unpaid")
    assert SQLiteLedger(path).read_reply(REQUEST) is None


def test_a_round_over_the_budget_is_not_debited(path, ledger):
    with pytest.raises(BudgetExceededError):
        ledger.reserve(RELEASE.times(61), run="one", request=REQUEST)
    with pytest.raises(BudgetExceededError, match="of 0 planned"):
        ledger.reserve(RELEASE, run="one", request=REQUEST, at_most=0)
    assert SQLiteLedger(path).find_round("one", 0) is None
    # Nothing needed the table, so nothing was changed.
    assert version(path) == 1


@pytest.mark.parametrize(
    "wrong", [("one", -1, FIRST), ("one", True, FIRST), ("one", 0, "x"), (1, 0, FIRST)]
)
def test_requests_are_checked(wrong):
    with pytest.raises(InputError, match="must be"):
        RoundRequest(*wrong)


def test_a_request_is_for_the_run_that_pays(ledger):
    with pytest.raises(InputError, match="must be the run of the request"):
        ledger.reserve(RELEASE, run="two", request=REQUEST)


# --- formats --------------------------------------------------------------------------------


def test_ledgers_of_the_first_format_are_upgraded_by_the_first_round(tmp_path):
    path = tmp_path / "old.ledger"
    shutil.copy(FIXTURES / "format-1-gaussian.ledger", path)
    release = Release.clipped_sum(noise_multiplier=48, adjacency=Adjacency.ZERO_OUT, unit="patient")
    ledger = SQLiteLedger(path)
    before = list(ledger.entries)
    ledger.reserve(release, run="third")
    assert version(path) == 1
    ledger.reserve(release, run="third", request=RoundRequest("third", 0, FIRST))
    assert version(path) == 2
    ledger.store_reply(RoundRequest("third", 0, FIRST), b"noised")
    again = SQLiteLedger(path)
    assert again.entries[: len(before)] == before
    assert again.filter.spent.total() == 12


def test_a_failed_upgrade_leaves_the_file_as_it_was(path, ledger):
    class Failing(HashChain):
        def _check_written(self, connection, expected):
            raise LedgerError("the disk is full")

    before = path.read_bytes()
    with pytest.raises(LedgerError, match="the disk is full"):
        Failing(path).append(ledger._last, lambda _: ["{}"], with_replies=True)
    assert path.read_bytes() == before


def test_replies_without_the_table_are_lost(path, ledger):
    ledger.reserve(RELEASE, run="one", request=REQUEST)
    ledger.store_reply(REQUEST, b"noised")
    execute(path, "DROP TABLE replies", "PRAGMA user_version = 1")
    again = SQLiteLedger(path)
    assert again.find_round("one", 0).reply is not None
    assert again.read_reply(REQUEST) is None


# --- tampering ------------------------------------------------------------------------------


@pytest.fixture
def answered(path, ledger):
    ledger.reserve(RELEASE, run="one", request=REQUEST)
    ledger.store_reply(REQUEST, b"noised")
    return ledger


def test_replies_can_be_neither_changed_nor_deleted(path, answered):
    for statement in ("DELETE FROM replies", "UPDATE replies SET content = x'00'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            edit(path, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE replies SET content = x'00'",
        "UPDATE replies SET round = 1",
        "UPDATE replies SET run = 'two'",
        f"UPDATE replies SET broadcast = '{OTHER}'",
        "UPDATE replies SET content = 'noised'",
        f"INSERT INTO replies VALUES ('one', 1, '{FIRST}', x'00')",
    ],
)
def test_a_reply_that_no_entry_names_is_refused(path, answered, statement):
    edit(path, statement, triggers=["replies_are_never_updated"])
    assert answered.read_reply(REQUEST) in (None, b"noised")
    with pytest.raises(LedgerError, match=r"is damaged|cannot be used"):
        SQLiteLedger(path)


def test_a_reply_that_is_gone_is_lost_and_its_debit_is_not(path, answered):
    edit(path, "DELETE FROM replies", triggers=["replies_are_never_deleted"])
    again = SQLiteLedger(path)
    assert again.read_reply(REQUEST) is None
    assert again.find_round("one", 0).reply is not None
    assert again.filter.spent.total() == 1
    with pytest.raises(LedgerError, match="does not await this reply"):
        again.store_reply(REQUEST, b"other noise")


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TRIGGER t BEFORE INSERT ON replies BEGIN SELECT RAISE(IGNORE); END"],
        ["DROP TRIGGER replies_are_never_deleted"],
        ["DROP TABLE replies"],
        ["CREATE INDEX i ON replies (content)"],
        ["ALTER TABLE replies ADD COLUMN note TEXT"],
        ["PRAGMA user_version = 1"],
        ["PRAGMA user_version = 3"],
    ],
)
def test_nothing_is_written_to_a_file_whose_layout_was_changed(path, answered, statements):
    execute(path, *statements)
    before = path.read_bytes()
    request = RoundRequest("one", 1, FIRST)
    for operation in (
        lambda: answered.reserve(RELEASE, run="one", request=request),
        lambda: answered.read_reply(REQUEST),
        lambda: SQLiteLedger(path),
    ):
        with pytest.raises(LedgerError):
            operation()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "trigger",
    [
        "CREATE TEMP TRIGGER t BEFORE INSERT ON main.replies BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON main.replies BEGIN "
        "DELETE FROM replies WHERE round = new.round; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON main.replies BEGIN "
        "UPDATE replies SET content = x'00' WHERE round = new.round; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON main.replies WHEN new.round = 1 BEGIN "
        f"INSERT INTO replies VALUES ('one', 2, '{FIRST}', x'00'); END",
    ],
)
def test_a_reply_is_read_back_before_the_commit(path, answered, trigger):
    chain = Prepared(path)

    def tamper(missed):
        chain.connection.execute(trigger)
        return ["{}"]

    before = path.read_bytes()
    with pytest.raises(LedgerError):
        chain.append(answered._last, tamper, reply=StoredReply("one", 1, FIRST, b"noised"))
    assert path.read_bytes() == before


def test_contradicting_entries_are_refused(path, answered):
    body = (
        '{"kind": "reply", "time": "", "run": "one", "round": 0, '
        f'"broadcast": "{FIRST}", "reply": "{OTHER}"}}'
    )
    HashChain(path).append(answered._last, lambda _: [body])
    with pytest.raises(LedgerError, match="contradicts an earlier entry"):
        SQLiteLedger(path)


def test_an_older_copy_is_stale(path, ledger, tmp_path):
    shutil.copy(path, tmp_path / "backup")
    ledger.reserve(RELEASE, run="one", request=REQUEST)
    head = ledger.head
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(StaleLedgerError):
        SQLiteLedger(path, head=head)
    with pytest.raises(StaleLedgerError):
        ledger.store_reply(REQUEST, b"noised")


# --- kill -9 --------------------------------------------------------------------------------

# Debits and answers one round after the other, and prints each reply only once it is stored.
ANSWERER = """
import os, sys
from pacdp.privacy import SQLiteLedger, Release, RoundRequest
release = Release.clipped_sum(noise_multiplier=float(sys.argv[2]), adjacency="zero-out")
ledger = SQLiteLedger(sys.argv[1])
print("ready", flush=True)
for number in range(10_000):
    request = RoundRequest("one", number, f"{number:064x}")
    known = ledger.find_round("one", number)
    if known is None:
        ledger.reserve(release, run="one", request=request)
    if known is None or known.reply is None:
        ledger.store_reply(request, os.urandom(3000))
        known = None
    if known is None:
        print(number, ledger.read_reply(request).hex(), flush=True)
"""


def test_kill_9_never_loses_a_reply_that_got_out_nor_debits_twice(path, ledger):
    tiny = calibrate(epsilon=0.5, releases=100_000).release().times(1)
    draw, sent = random.Random(1), {}
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", ANSWERER, str(path), repr(tiny.noise_multiplier)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            lines = [process.stdout.readline() for _ in range(draw.randrange(1, 12))]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):
                number, content = line.split()
                assert int(number) not in sent
                sent[int(number)] = bytes.fromhex(content)
        again = SQLiteLedger(path)
        # Each round was debited once, and what got out is what is stored.
        assert again.filter.spent.total() == len(again.rounds)
        for number, content in sent.items():
            assert again.read_reply(RoundRequest("one", number, f"{number:064x}")) == content


@settings(max_examples=100)
@given(data=st.data())
def test_fuzzed_files_with_replies_are_refused_or_unharmed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "a.ledger"
    ledger = SQLiteLedger.create(path, client="a", budget=BUDGET)
    ledger.reserve(RELEASE, run="one", request=REQUEST)
    ledger.store_reply(REQUEST, b"noised" * 1000)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        again = SQLiteLedger(path)
        reply = again.read_reply(REQUEST)
    except LedgerError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    assert again.entries == ledger.entries
    assert reply in (None, b"noised" * 1000)
