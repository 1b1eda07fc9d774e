"""A whole federation of real processes on one machine, through kills, without Flower."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pacdp.coordinator import CoordinatorSettings
from pacdp.deployment import flower_transport
from pacdp.deployment.flower_transport import FlowerTransport
from pacdp.deployment.layout import FederationFolder
from pacdp.deployment.processes import ProcessIdentity, ProcessTable
from pacdp.deployment.running import RunWatcher
from pacdp.deployment.supervisor import Supervisor
from pacdp.deployment.verification import DisagreementError, verify_federation
from pacdp.errors import InputError
from pacdp.federation import Broadcast, LocalModel, Plan, Server
from pacdp.federation.wire import Wire
from pacdp.keys import load_signer
from pacdp.privacy import SQLiteLedger
from tests.cli.command import as_json, refused, run

ROUNDS = 6
DIRECT = ("--transport", "direct")


def status(folder):
    return as_json("federation", "status", folder)


def wait_for_rounds(folder, count):
    deadline = time.monotonic() + 400
    while len(RunWatcher(FederationFolder(folder)).read_history()) < count:
        assert time.monotonic() < deadline, [
            path.read_text()[-500:] for path in (folder / "logs").iterdir()
        ]
        time.sleep(0.1)


def copy_ledgers(folder, to):
    to.mkdir()
    for path in folder.glob("sites/*/*.ledger"):
        shutil.copy(path, to)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run through the death of a site, of the coordinator and of the supervisor."""
    folder = tmp_path_factory.mktemp("run") / "f"
    options = ("--experiment", "heart", "--method", "fixed", "--rounds", ROUNDS)
    run("federation", "init", folder, *options, "--interval", 0.3, "--port", 20200)
    assert status(folder)["coordinator"]["state"] == "not started"
    assert as_json("federation", "verify", folder)["model"] == "not trained yet"
    run("federation", "up", folder, "--detach", *DIRECT)
    second = run("federation", "up", folder, "--detach", *DIRECT, code=2)
    assert "is already running" in second.stderr
    wait_for_rounds(folder, 1)
    copy_ledgers(folder, folder.parent / "older")
    state = status(folder)
    assert state["supervised"]
    for name in ("site hungary", "coordinator"):
        os.kill(state["processes"][name]["pid"], signal.SIGKILL)
    wait_for_rounds(folder, 3)
    # What was killed was started again.
    again = status(folder)["processes"]
    assert again["site hungary"]["pid"] != state["processes"]["site hungary"]["pid"]
    assert again["relay"]["pid"] == state["processes"]["relay"]["pid"]
    table = ProcessTable.load(folder / "processes.json")
    # Without a supervisor the relay is not started again, and nothing goes on.
    for process in (table.supervisor, table.processes["relay"]):
        os.kill(process.pid, signal.SIGKILL)
    assert as_json("federation", "verify", folder)["agree"]
    output = run("federation", "up", folder, *DIRECT, "--timeout", 400).stdout
    assert output.startswith("resumed after round ")
    assert not any(process.is_alive() for process in table.processes.values())
    assert f"round {ROUNDS} of {ROUNDS}: 4 of 4 replied" in output
    return folder


def test_every_round_is_counted_once(finished):
    state = status(finished)
    assert state["coordinator"]["state"] == "ended"
    assert state["processes"] == {}
    assert not state["supervised"]
    report = as_json("federation", "verify", finished)
    assert report["model"] == "follows from the log"
    for name, site in report["sites"].items():
        assert (site["debited"], site["answered"], site["delivered"]) == (ROUNDS,) * 3
        assert site["spent"]["epsilon"] <= site["budget"]["epsilon"]
        assert state["sites"][name]["plan"]["answered"] == ROUNDS
        assert state["coordinator"]["sites"][name]["replies"] == ROUNDS
    assert "all agree" in run("federation", "verify", finished).stdout


def test_a_run_that_has_ended_is_only_shown(finished):
    for options in ((), ("--detach",)):
        output = run("federation", "up", finished, *DIRECT, *options).stdout
        assert "ended" in output
        assert "δ = 1e-05, zero-out of a record" in output
        assert "resumed" not in output
    assert "nothing was running" in run("federation", "down", finished).stdout


def test_down_ends_what_runs_and_nothing_else(finished, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(finished, folder)
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    recorded = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        known = ProcessIdentity.of(recorded.pid)
        other = ProcessIdentity.of(foreign.pid).model_copy(update={"started": known.started + "0"})
        table = ProcessTable(supervisor=other, processes={"relay": known, "coordinator": other})
        table.save(folder / "processes.json")
        assert run("federation", "down", folder).stdout == "stopped: relay\n"
        assert recorded.wait(10) == -signal.SIGTERM
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
        recorded.kill()
        recorded.wait()


@pytest.mark.parametrize("detach", [(), ("--detach",)])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--timeout", "nan"), "--timeout = nan"),
        (("--timeout", 0), "--timeout = 0"),
        (("--transport", "pigeon"), "--transport = 'pigeon': must be one of flower, direct"),
    ],
)
def test_wrong_options_of_up_are_refused(finished, detach, options, message):
    assert message in refused("federation", "up", finished, *options, *detach)


def test_a_port_in_use_is_refused(finished, monkeypatch):
    monkeypatch.setattr(flower_transport, "ensure_environment", lambda: Path("unused"))
    folder = FederationFolder(finished)
    settings = folder.load_settings()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for first in (port, port - 2):
            with pytest.raises(InputError, match=f"127.0.0.1:{port}: the port is not available"):
                FlowerTransport(
                    folder, settings.model_copy(update={"port": first}), Supervisor(folder)
                )


def test_a_second_up_is_refused_with_one_line(finished, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "coordinator" / "results")
    ProcessTable(supervisor=ProcessIdentity.of(os.getpid()), processes={}).save(
        folder / "processes.json"
    )
    process = run("federation", "up", folder, *DIRECT, code=2)
    assert "is already running" in process.stderr
    assert process.stdout == ""


def test_a_result_that_cannot_be_read_is_named(finished, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(finished, folder)
    change_log(folder, "UPDATE results SET result = 'x' WHERE round = 0")
    expected = f"pacdp: {folder}/coordinator/run.db: the result of a round cannot be read\n"
    assert run("federation", "verify", folder, code=1).stderr == expected
    assert run("federation", "status", folder, code=2).stderr == expected


def test_settings_that_are_refused_end_it_with_one_line(finished, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "coordinator" / "results")
    (folder / "sites" / "hungary" / "records.npz").unlink()
    process = run("federation", "up", folder, *DIRECT, code=1)
    assert process.stderr.startswith("pacdp: site hungary: ")
    assert process.stderr.count("\n") == 1
    assert status(folder)["processes"] == {}


def change_log(folder, statement, *values):
    with closing(sqlite3.connect(folder / "coordinator" / "run.db")) as database, database:
        assert database.execute(statement, values).rowcount == 1


def change_ledger(folder, statement):
    path = folder / "sites" / "hungary" / "hungary.ledger"
    with closing(sqlite3.connect(path)) as database, database:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = database.execute(query).fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        assert database.execute(statement).rowcount == 1
        for _, sql in triggers:
            database.execute(sql)


def flip_answer(folder):
    with closing(sqlite3.connect(folder / "coordinator" / "run.db")) as database:
        query = "SELECT frame FROM answers WHERE round = 2 AND client = 1"
        frame = bytearray(database.execute(query).fetchone()[0])
    frame[len(frame) // 2] ^= 1
    statement = "UPDATE answers SET frame = ? WHERE round = 2 AND client = 1"
    change_log(folder, statement, bytes(frame))


def swap_answers(folder):
    with closing(sqlite3.connect(folder / "coordinator" / "run.db")) as database:
        query = "SELECT frame FROM answers WHERE round = 2 AND client = 0"
        (frame,) = database.execute(query).fetchone()
    change_log(folder, "UPDATE answers SET frame = ? WHERE round = 2 AND client = 1", frame)


def send_another_broadcast(folder):
    settings = CoordinatorSettings.load_toml(folder / "coordinator" / "coordinator.toml")
    plan = Plan.load(settings.plan)
    local_model = LocalModel(plan)
    sent = Server(plan, local_model.state()).broadcast(0)
    message = Broadcast(2, {n: v + 1 for n, v in sent.model.items()}, sent.shared_state)
    frame = Wire.for_model(local_model).encode_broadcast(message, sign=load_signer(settings.key))
    change_log(folder, "UPDATE broadcasts SET frame = ? WHERE round = 2", frame)


def debit_without_a_round(folder):
    plan = Plan.load(folder / "plan.json")
    ledger = SQLiteLedger(folder / "sites" / "hungary" / "hungary.ledger")
    ledger.set_budget(10.0)
    ledger.reserve(*plan.planned_releases(1), run=plan.run)


def change_model(folder):
    path = folder / "coordinator" / "results" / "model.safetensors"
    save_file({name: value + 1e-6 for name, value in load_file(path).items()}, path)


def accept_another_plan(folder):
    path = folder / "sites" / "hungary" / "site.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f'accepted = "{"0" * 64}"', *lines[1:]]))


def restore_a_backup(folder):
    older = next(Path(folder).parents[1].rglob("older/hungary.ledger"))
    shutil.copy(older, folder / "sites" / "hungary")


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (flip_answer, "site hungary: the reply to round 3 is not the one that the site stored"),
        (swap_answers, "site hungary: the reply to round 3 is not the one that the site stored"),
        (
            send_another_broadcast,
            "site cleveland: round 3 was debited for a broadcast that the coordinator did not send",
        ),
        (
            lambda folder: change_log(folder, "DELETE FROM answers WHERE round = 2 AND client = 1"),
            "does not follow from the answers before it",
        ),
        (
            lambda folder: change_ledger(folder, "DELETE FROM replies WHERE round = 2"),
            "site hungary: the reply to round 3 is not the one that the site stored",
        ),
        (
            lambda folder: change_ledger(
                folder, "UPDATE replies SET content = x'00' WHERE round = 2"
            ),
            "the reply to round 2 does not match its entry",
        ),
        (debit_without_a_round, "site hungary: the ledger has debits of this run"),
        (restore_a_backup, "an older or another copy"),
        (change_model, "is not the model that the run's log implies"),
        (accept_another_plan, "site hungary: accepted a plan other than"),
    ],
)
def test_verify_finds_tampering(finished, tmp_path_factory, tamper, message):
    parent = tmp_path_factory.mktemp("tampered")
    shutil.copytree(finished.parent / "older", parent / "older")
    folder = parent / "x" / "f"
    shutil.copytree(finished, folder)
    tamper(folder)
    with pytest.raises(DisagreementError, match=message):
        verify_federation(FederationFolder(folder))


def test_verify_says_the_first_disagreement_in_one_line(finished, tmp_path):
    folder = tmp_path / "f"
    shutil.copytree(finished, folder)
    change_model(folder)
    process = run("federation", "verify", folder, code=1)
    assert process.stderr.count("\n") == 1
    assert process.stdout == ""
    process = run("federation", "verify", folder, "--json", code=1)
    assert json.loads(process.stdout)["agree"] is False
