"""The SQLite ledger, with real files, processes and kills."""

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.errors import BudgetExceededError, InputError, LedgerError
from pacdp.privacy import Adjacency, Guarantee, Release, SQLiteLedger, account, calibrate
from pacdp.privacy.hash_chain import HashChain

ZERO_OUT = Adjacency.ZERO_OUT
BUDGET = Guarantee(epsilon=0.5, adjacency=ZERO_OUT)
# Sixty of them cost exactly the budget.
RELEASE = calibrate(epsilon=0.5, releases=60).release().times(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ledger"


@pytest.fixture
def ledger(path):
    return SQLiteLedger.create(path, client="a", budget=BUDGET)


def edit(path, statement, *, triggers=()):
    """Change the file directly, as a careless administrator would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        sql = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        for name in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for name in triggers:
            connection.execute(sql[name])


def test_what_is_written_is_read_back(path, ledger):
    ledger.reserve(RELEASE.times(5), run="one", label="test")
    ledger.set_budget(0.6, reason="asked by the board")
    again = SQLiteLedger(path)
    assert again.client == "a"
    assert again.filter == ledger.filter
    assert again.head == ledger.head
    assert [entry.kind for entry in again.entries] == ["open", "release", "budget"]
    assert again.entries[1].release == RELEASE.times(5)
    assert again.entries[1].content["label"] == "test"
    assert again.filter.realised == account(RELEASE.times(5))


def test_the_last_release_fits_and_the_next_is_refused(path, ledger):
    for _ in range(60):
        ledger.reserve(RELEASE, run="one")
    with pytest.raises(BudgetExceededError, match=r"a\.ledger: would reach .* left: 0 releases"):
        ledger.reserve(RELEASE, run="one")
    assert SQLiteLedger(path).filter.spent.total() == 60


def test_releases_that_go_together_are_taken_together_or_not_at_all(path, ledger):
    count = Release(noise_multiplier=500, sensitivity=0.5, adjacency=ZERO_OUT)
    ledger.reserve(RELEASE, count, run="one")
    with pytest.raises(BudgetExceededError):
        ledger.reserve(count, RELEASE.times(60), run="one")
    assert SQLiteLedger(path).filter.spent.total() == 2


def test_several_runs_draw_on_one_ledger(path, ledger):
    other = SQLiteLedger(path)
    ledger.reserve(RELEASE.times(30), run="one")
    other.reserve(RELEASE.times(30), run="two")
    with pytest.raises(BudgetExceededError):
        ledger.reserve(RELEASE, run="one")
    # A refusal is decided by the file, so the stale one still counts the other's releases.
    assert SQLiteLedger(path).filter.spent.total() == 60


def test_a_frozen_plan_survives_in_the_file(path, ledger):
    coin = Release.clipped_sum(noise_multiplier=10, count=9, sampling_rate=0.1, adjacency=ZERO_OUT)
    ledger.freeze(coin, run="sampled")
    ledger.reserve(coin.times(9), run="sampled")
    again = SQLiteLedger(path)
    assert again.filter.affordable(coin) == 0
    with pytest.raises(BudgetExceededError, match="frozen plan"):
        again.reserve(coin.times(1), run="sampled")


def test_the_budget_changes_by_an_entry_and_not_below_what_is_spent(path, ledger):
    ledger.reserve(RELEASE.times(30), run="one")
    with pytest.raises(BudgetExceededError, match="below the spent"):
        ledger.set_budget(0.1)
    with pytest.raises(InputError, match="must be"):
        ledger.set_budget(float("nan"))
    ledger.set_budget(0.4)
    assert SQLiteLedger(path).filter.budget.epsilon == 0.4
    assert len(SQLiteLedger(path).entries) == 3


def test_a_budget_that_cannot_be_represented_is_refused_and_not_written(path, ledger):
    before = path.read_bytes()
    for epsilon in (1e308, 5e-324):
        with pytest.raises(InputError, match=r"epsilon = .*: must be a number from 1e-100 to"):
            ledger.set_budget(epsilon)
    assert path.read_bytes() == before
    assert ledger.filter.budget == BUDGET
    other = path.with_name("b.ledger")
    for wrong in ({"epsilon": 1e308}, {"epsilon": 0.5, "delta": 1 - 1e-16}):
        with pytest.raises(InputError, match="must be"):
            SQLiteLedger.create(other, client="b", budget=Guarantee(adjacency=ZERO_OUT, **wrong))
        assert not other.exists()


@pytest.mark.parametrize("number", [np.float32(0.75), np.int64(1), np.array(0.75)])
def test_a_budget_may_be_any_kind_of_number(path, ledger, number):
    ledger.set_budget(number)
    assert SQLiteLedger(path).filter.budget.epsilon == float(number)


@pytest.mark.parametrize("client", ["", "  ", "a\nb"])
def test_a_ledger_needs_a_name(path, client):
    with pytest.raises(InputError, match="client"):
        SQLiteLedger.create(path, client=client, budget=BUDGET)
    assert not path.exists()


def test_nothing_is_created_for_a_budget_that_is_none(path):
    with pytest.raises(InputError, match="budget must be > 0"):
        SQLiteLedger.create(path, client="a", budget=Guarantee(epsilon=0, adjacency=ZERO_OUT))
    assert not path.exists()


def test_creating_never_touches_what_exists(path):
    path.write_text("precious")
    with pytest.raises(LedgerError, match="exists already"):
        SQLiteLedger.create(path, client="a", budget=BUDGET)
    assert path.read_text() == "precious"
    with pytest.raises(LedgerError, match="cannot be created: No such file or directory"):
        SQLiteLedger.create(path.parent / "no" / "where", client="a", budget=BUDGET)


def test_the_file_is_the_clients_own(path, ledger):
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_commit_is_synced_including_the_folder(path, ledger):
    with HashChain(path)._connection() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# --- what must be refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not a database at all", "is not a pacdp ledger"),
        (b"SQLite format 3\0" + bytes(200), "is not a pacdp ledger"),
    ],
)
def test_foreign_files_are_refused_by_name(path, content, reason):
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=reason) as refusal:
        SQLiteLedger(path)
    assert str(path) in str(refusal.value)


def test_other_databases_are_refused(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE entries (x)")
    with pytest.raises(LedgerError, match="but not a pacdp ledger"):
        SQLiteLedger(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(LedgerError, match="No such file"):
        SQLiteLedger(tmp_path / "nothing")
    with pytest.raises(LedgerError, match="is not a file"):
        SQLiteLedger(tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(LedgerError, match="is not a file"):
        SQLiteLedger(path)


def test_a_head_is_a_whole_hash(path, ledger):
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        SQLiteLedger(path, head=ledger.head[:8])


def test_entries_can_be_neither_changed_nor_deleted(path, ledger):
    ledger.reserve(RELEASE, run="one")
    for statement in ("DELETE FROM entries", "UPDATE entries SET body = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            edit(path, statement)


@pytest.mark.parametrize(
    ("statement", "trigger"),
    [
        ("UPDATE entries SET body = replace(body, '0.5', '5.0')", "entries_are_never_updated"),
        ("UPDATE entries SET hash = upper(hash)", "entries_are_never_updated"),
        ("DELETE FROM entries WHERE sequence = 2", "entries_are_never_deleted"),
        ("DELETE FROM entries WHERE sequence = 1", "entries_are_never_deleted"),
        ("DELETE FROM entries", "entries_are_never_deleted"),
    ],
)
def test_careless_edits_are_noticed(path, ledger, statement, trigger):
    ledger.reserve(RELEASE, run="one")
    ledger.reserve(RELEASE, run="one")
    edit(path, statement, triggers=[trigger])
    with pytest.raises(LedgerError, match="is damaged"):
        SQLiteLedger(path)


def test_a_missing_guard_is_noticed(path, ledger):
    edit(path, "DROP TRIGGER entries_are_never_deleted")
    with pytest.raises(LedgerError, match="tables are not those of a ledger"):
        SQLiteLedger(path)


def test_a_newer_format_is_refused(path, ledger):
    edit(path, "PRAGMA user_version = 3")
    with pytest.raises(LedgerError, match="has ledger format 3, this version reads 1 and 2"):
        SQLiteLedger(path)


@pytest.mark.parametrize(
    "body",
    [
        "nonsense",
        "[]",
        "{}",
        '{"kind": "gift", "time": ""}',
        '{"kind": "release", "time": ""}',
        '{"kind": "budget", "time": "", "epsilon": -1}',
        '{"kind": "budget", "time": "", "epsilon": "much"}',
    ],
)
def test_well_chained_nonsense_is_refused(path, ledger, body):
    HashChain(path).append(ledger._last, lambda _: [body])
    with pytest.raises(LedgerError, match="is damaged: entr"):
        SQLiteLedger(path)


def test_an_overspent_chain_is_refused(path, ledger):
    content = {"kind": "release", "time": "", "run": "", **RELEASE.times(61).to_dict()}
    HashChain(path).append(ledger._last, lambda _: [json.dumps(content)])
    with pytest.raises(LedgerError, match="is overspent"):
        SQLiteLedger(path)


def test_an_older_copy_is_noticed_where_the_head_is_known(path, ledger, tmp_path):
    ledger.reserve(RELEASE, run="one")
    shutil.copy(path, tmp_path / "backup")
    first = ledger.head
    ledger.reserve(RELEASE, run="one")
    newest = ledger.head
    shutil.copy(tmp_path / "backup", path)
    assert SQLiteLedger(path, head=first).head == first
    with pytest.raises(LedgerError, match="an older or another copy"):
        SQLiteLedger(path, head=newest)
    # A process that knows the newer state notices by itself.
    with pytest.raises(LedgerError, match="an older or another copy"):
        ledger.reserve(RELEASE, run="one")


def test_a_known_head_stays_known_as_the_ledger_grows(path, ledger):
    first = ledger.head
    ledger.reserve(RELEASE, run="one")
    assert SQLiteLedger(path, head=first).head == ledger.head != first


def damaged_or_the_same(path, expected):
    """A damaged file is refused as a ledger error, or the damage touched nothing that counts."""
    try:
        found = SQLiteLedger(path)
    except LedgerError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert found.entries == expected.entries
    assert found.filter == expected.filter


@settings(max_examples=300)
@given(data=st.data())
def test_fuzzed_files_are_refused_or_unharmed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "a.ledger"
    ledger = SQLiteLedger.create(path, client="a", budget=BUDGET)
    for _ in range(3):
        ledger.reserve(RELEASE, run="one")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    damaged_or_the_same(path, ledger)


def test_every_truncation_is_refused_or_unharmed(path, ledger):
    for _ in range(20):
        ledger.reserve(RELEASE, run="a run with a long name, so that the file has several pages")
    content = path.read_bytes()
    rng = random.Random(0)
    for length in {
        0,
        1,
        15,
        16,
        100,
        4096,
        8192,
        *(rng.randrange(len(content)) for _ in range(50)),
    }:
        path.write_bytes(content[:length])
        with pytest.raises(LedgerError):
            SQLiteLedger(path)


def test_a_copy_that_cannot_be_written_can_be_read_but_not_spent(path, ledger, tmp_path):
    path.chmod(0o400)
    script = "import sys; from pacdp.cli import main; main()"
    command = [sys.executable, "-c", script, "ledger", "verify", str(path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    if os.geteuid() != 0:  # nothing is read-only for root
        with pytest.raises(LedgerError, match="cannot be used"):
            ledger.reserve(RELEASE, run="one")


def test_a_full_disk_refuses_and_loses_nothing(path, ledger):
    ledger.reserve(RELEASE, run="one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    long_name = "needs more than the page that is there" * 200
    # The kernel refuses to grow any file beyond this, as a full disk would.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(LedgerError, match="cannot be used"):
            ledger.reserve(RELEASE, run=long_name)
        with pytest.raises(LedgerError, match="cannot be used"):
            SQLiteLedger.create(path.parent / "b.ledger", client="b", budget=BUDGET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (path.parent / "b.ledger").exists()
    assert SQLiteLedger(path).entries == ledger.entries
    ledger.reserve(RELEASE, run="one")


# --- several processes, and kill -9 ----------------------------------------------------------

# Spends one release at a time, and prints it only after the ledger has admitted it.
SPENDER = """
import sys
from pacdp.errors import BudgetExceededError
from pacdp.privacy import SQLiteLedger, Release
noise, run = float(sys.argv[2]), sys.argv[3]
release = Release.clipped_sum(noise_multiplier=noise, adjacency="zero-out")
ledger = SQLiteLedger(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        print(ledger.reserve(release, run=run)[0].hash, flush=True)
except BudgetExceededError:
    print("refused", flush=True)
"""


def spender(path: Path, release: Release, run: str, script: str = SPENDER) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path), repr(release.noise_multiplier), run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_cannot_both_take_the_last_release(path, ledger):
    processes = [spender(path, RELEASE, run) for run in ("one", "two")]
    for process in processes:
        go(process)
    outputs = [process.communicate()[0].split() for process in processes]
    assert all(output[-1] == "refused" for output in outputs)
    got_out = [hash_ for output in outputs for hash_ in output[:-1]]
    state = SQLiteLedger(path)
    assert len(got_out) == 60
    assert sorted(got_out) == sorted(entry.hash for entry in state.entries[1:])
    assert state.filter.realised.epsilon <= 0.5


# Opens the ledger anew for each release, from several threads at once.
CROWD = """
import sys, threading
from pacdp.errors import BudgetExceededError
from pacdp.privacy import SQLiteLedger, Release
release = Release.clipped_sum(noise_multiplier=float(sys.argv[2]), adjacency="zero-out")
print("ready", flush=True)
sys.stdin.readline()
def spend():
    try:
        while True:
            print(SQLiteLedger(sys.argv[1]).reserve(release, run=sys.argv[3])[0].hash, flush=True)
    except BudgetExceededError:
        pass
threads = [threading.Thread(target=spend) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_of_several_processes_share_one_truth(path, ledger):
    processes = [spender(path, RELEASE, run, script=CROWD) for run in ("one", "two")]
    for process in processes:
        go(process)
    got_out = [hash_ for process in processes for hash_ in process.communicate()[0].split()]
    entries = SQLiteLedger(path).entries[1:]
    assert sorted(got_out) == sorted(entry.hash for entry in entries)
    assert len(entries) == 60


def test_threads_may_share_one_ledger(path, ledger):
    granted = []

    def spend():
        try:
            while True:
                granted.append(ledger.reserve(RELEASE, run="one")[0].hash)
        except BudgetExceededError:
            pass

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == sorted(entry.hash for entry in SQLiteLedger(path).entries[1:])
    assert len(granted) == 60


def test_a_second_name_is_refused(path, ledger):
    path.with_suffix(".link").hardlink_to(path)
    with pytest.raises(LedgerError, match="has 2 names"):
        SQLiteLedger(path)


@pytest.mark.parametrize("wrong", [{"run": b"x"}, {"run": "one", "label": 3}])
def test_marks_are_text(ledger, wrong):
    with pytest.raises(InputError, match="must be a string"):
        ledger.reserve(RELEASE, **wrong)


def test_kill_9_never_loses_a_release_that_got_out(path, ledger):
    tiny = calibrate(epsilon=0.5, releases=100_000).release().times(1)
    rng = random.Random(0)
    got_out: list[str] = []
    kills = 25
    for number in range(kills):
        with spender(path, tiny, f"life {number}") as process:
            go(process)
            for _ in range(rng.randrange(1, 30)):
                got_out.append(process.stdout.readline().strip())
            # The child is somewhere in its next releases: reading, journalling, syncing, printing.
            process.send_signal(signal.SIGKILL)
            # Not communicate(), which passes over what readline has read ahead.
            got_out += process.stdout.read().split()
        entries = SQLiteLedger(path).entries
        recorded = {entry.hash for entry in entries}
        assert recorded.issuperset(got_out)
        # At most the one release that was paid for and killed on its way out.
        assert len(entries) - 1 - len(got_out) <= number + 1
    assert SQLiteLedger(path).filter.spent.total() >= len(got_out) > kills
