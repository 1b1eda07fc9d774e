"""Files that change under an open ledger: a debit is in the file, or it is refused."""

import sqlite3
from contextlib import closing, contextmanager

import pytest

from pacdp.errors import LedgerError
from pacdp.privacy import Adjacency, Guarantee, Release, SQLiteLedger
from pacdp.privacy.hash_chain import HashChain

BUDGET = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
RELEASE = Release.clipped_sum(noise_multiplier=50, adjacency=Adjacency.ZERO_OUT)

DROP_THE_ROW = "CREATE TRIGGER t BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END"
ADD_A_ROW = (
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN "
    "INSERT INTO entries VALUES (new.sequence + 1, new.hash, new.body, new.hash); END"
)
DELETE_THE_ROW = (
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN "
    "DELETE FROM entries WHERE sequence = new.sequence; END"
)
CHANGE_THE_ROW = (
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN "
    "UPDATE entries SET body = '{}' WHERE sequence = new.sequence; END"
)
WITHOUT_GUARDS = (
    "DROP TRIGGER entries_are_never_deleted",
    "DROP TRIGGER entries_are_never_updated",
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ledger"


@pytest.fixture
def ledger(path):
    return SQLiteLedger.create(path, client="a", budget=BUDGET)


def execute(path, *statements):
    """Change the file from another connection."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def temporary(trigger):
    """The same trigger for one connection only, on the table of the file."""
    return trigger.replace("CREATE TRIGGER", "CREATE TEMP TRIGGER").replace(
        "INSERT ON entries", "INSERT ON main.entries"
    )


@pytest.mark.parametrize(
    "statements",
    [
        [DROP_THE_ROW],
        [ADD_A_ROW],
        [DELETE_THE_ROW],
        [CHANGE_THE_ROW],
        [*WITHOUT_GUARDS, DELETE_THE_ROW],
        [*WITHOUT_GUARDS, CHANGE_THE_ROW],
        [WITHOUT_GUARDS[0]],
        ["CREATE TABLE other (x)"],
        ["CREATE INDEX i ON entries (body)"],
        ["ALTER TABLE entries ADD COLUMN note TEXT"],
        [
            *WITHOUT_GUARDS,
            "ALTER TABLE entries RENAME TO kept",
            "CREATE VIEW entries AS SELECT * FROM kept",
            "CREATE TRIGGER t INSTEAD OF INSERT ON entries BEGIN SELECT 1; END",
        ],
        ["PRAGMA user_version = 2"],
        ["PRAGMA application_id = 0"],
    ],
)
def test_no_debit_on_a_file_whose_layout_was_changed(path, ledger, statements):
    execute(path, *statements)
    before = path.read_bytes()
    with pytest.raises(LedgerError) as refusal:
        ledger.reserve(RELEASE, run="one")
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before
    assert not ledger.filter.spent
    assert len(ledger.entries) == 1


def test_debits_go_on_once_the_file_is_repaired(path, ledger):
    execute(path, DROP_THE_ROW)
    with pytest.raises(LedgerError, match="tables are not those of a ledger"):
        ledger.reserve(RELEASE, run="one")
    execute(path, "DROP TRIGGER t")
    ledger.reserve(RELEASE, run="one")
    assert SQLiteLedger(path).filter == ledger.filter
    assert ledger.filter.spent.total() == 1


class Prepared(HashChain):
    """A chain that runs statements on each of its own connections first, and keeps the last one."""

    statements: tuple[str, ...] = ()

    @contextmanager
    def _connection(self):
        with super()._connection() as connection:
            for statement in self.statements:
                connection.execute(statement)
            self.connection = connection
            yield connection


@pytest.mark.parametrize(
    "statement",
    [
        temporary(DROP_THE_ROW),
        "CREATE TEMP VIEW entries AS SELECT * FROM main.entries",
        "CREATE TEMP TABLE entries (sequence, previous, body, hash)",
    ],
)
def test_temporary_objects_are_refused(path, ledger, statement):
    chain = Prepared(path)
    chain.statements = (statement,)
    for operation in (chain.read, lambda: chain.append(ledger._last, lambda _: ["{}"])):
        with pytest.raises(LedgerError, match="tables are not those of a ledger"):
            operation()
    assert HashChain(path).read() == [ledger._last]


@pytest.mark.parametrize("trigger", [DROP_THE_ROW, ADD_A_ROW, DELETE_THE_ROW, CHANGE_THE_ROW])
def test_new_entries_are_read_back_before_the_commit(path, ledger, trigger):
    chain = Prepared(path)

    def tamper(missed):
        # After the layout was checked, so that only reading back can notice.
        chain.connection.execute(temporary(trigger))
        return ["{}"]

    before = path.read_bytes()
    with pytest.raises(LedgerError) as refusal:
        chain.append(ledger._last, tamper)
    assert str(refusal.value).startswith(f"{path}: ")
    assert path.read_bytes() == before


def test_entries_go_to_the_file_and_not_to_a_temporary_table_of_that_name(path, ledger):
    chain = Prepared(path)

    def shadow(missed):
        chain.connection.execute("CREATE TEMP TABLE entries (sequence, previous, body, hash)")
        return ["{}"]

    added = chain.append(ledger._last, shadow)
    assert HashChain(path).read() == [ledger._last, *added]


class Crowded(HashChain):
    """A chain whose connections add an entry of their own before the layout is checked."""

    def _check_layout(self, connection):
        connection.execute("INSERT INTO entries VALUES (2, '', '', '')")
        super()._check_layout(connection)


def test_a_new_ledger_is_read_back_before_the_commit(path):
    with pytest.raises(LedgerError, match="did not take the new entries"):
        Crowded.create(path, "{}")
    assert not path.exists()


class Overtaken(HashChain):
    """A chain whose new file another process opens first."""

    @contextmanager
    def _connection(self):
        execute(self.path, "CREATE TABLE IF NOT EXISTS other (x)")
        with super()._connection() as connection:
            yield connection


def test_a_new_ledger_holds_nothing_else(path):
    with pytest.raises(LedgerError, match="tables are not those of a ledger"):
        Overtaken.create(path, "{}")
    assert not path.exists()
