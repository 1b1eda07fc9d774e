"""Site processes at real sockets: users, sizes, times, signals, and kill -9 at bad moments."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pacdp.sockets import LENGTH, ask
from tests.site.trial import make_trial, refusal_code, serving


def call(trial, frame):
    return ask(trial.settings.socket, frame, timeout=60)


def test_a_site_answers_at_its_socket_until_it_is_told_to_stop(tmp_path):
    trial = make_trial(tmp_path)
    with serving(trial) as process:
        path = trial.settings.socket
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        first = call(trial, trial.broadcast(0))
        assert refusal_code(first) is None
        assert call(trial, trial.broadcast(0)) == first
        # A second process on the same ledger does not start, and disturbs nobody.
        with serving(trial, ready=False) as second:
            assert second.wait(60) == 1
            assert "another site process uses this ledger" in second.stderr.read()
        # A length that no request can have is refused unread.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(LENGTH.pack(2**32 - 1))
            size = LENGTH.unpack(connection.recv(4, socket.MSG_WAITALL))[0]
            assert refusal_code(connection.recv(size, socket.MSG_WAITALL)) == "malformed"
        # Peers that send nothing, or half of it, and go away.
        for part in (b"", b"\0", LENGTH.pack(100) + b"PACDP"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(part)
        assert call(trial, trial.broadcast(0)) == first
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not path.exists()
    assert trial.ledger.filter.spent.total() == 1


def test_answers_leave_at_multiples_of_the_interval(tmp_path):
    trial = make_trial(tmp_path, interval=0.5)
    with serving(trial):
        for frame in (trial.broadcast(0), trial.broadcast(0), b"", trial.broadcast(0, factor=2.0)):
            start = time.monotonic()
            call(trial, frame)
            waited = time.monotonic() - start
            # Whatever the machine does meanwhile, nothing leaves before its time.
            assert waited >= 0.5


def test_sigterm_lets_the_answer_in_hand_leave(tmp_path):
    trial = make_trial(tmp_path, interval=1.0)
    with serving(trial) as process, socket.socket(socket.AF_UNIX) as connection:
        frame = trial.broadcast(0)
        connection.connect(str(trial.settings.socket))
        connection.sendall(LENGTH.pack(len(frame)) + frame)
        while trial.ledger.find_round(trial.plan.run, 0) is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        size = LENGTH.unpack(connection.recv(4, socket.MSG_WAITALL))[0]
        assert refusal_code(connection.recv(size, socket.MSG_WAITALL)) is None
        assert process.wait(60) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as other users")
def test_only_allowed_users_are_answered():
    # Not in pytest's own folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        trial = make_trial(folder, peers=[12345])
        _try_users(trial)


def _try_users(trial):
    script = (
        "import os, socket, sys\n"
        "os.setgroups([])\n"
        "os.setgid(int(sys.argv[2]))\n"
        "os.setuid(int(sys.argv[2]))\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.connect(sys.argv[1])\n"
        "connection.sendall(bytes(4))\n"
        "print(len(connection.recv(4)))\n"
    )

    def try_as(user):
        command = [sys.executable, "-c", script, str(trial.settings.socket), str(user)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    with serving(trial):
        # The mode alone keeps them out.
        assert "PermissionError" in try_as(12345).stderr
        trial.settings.socket.chmod(0o666)
        assert try_as(12345).stdout == "4\n"
        stranger = try_as(12346)
        assert stranger.stdout == "0\n" or "Error" in stranger.stderr


@pytest.mark.parametrize("moment", ["debited", "unpublished", "stored"])
def test_kill_9_between_debit_and_answer(tmp_path, moment):
    trial = make_trial(tmp_path)
    frame, other = trial.broadcast(0), trial.broadcast(0, factor=2.0)
    with serving(trial, moment) as process:
        with pytest.raises((ConnectionError, OSError)):
            call(trial, frame)
        assert process.wait(60) == -signal.SIGKILL
    # Debited, and nothing has left.
    assert trial.ledger.filter.spent.total() == 1
    known = trial.ledger.find_round(trial.plan.run, 0)
    assert (known.reply is None) == (moment == "debited")
    stored = trial.ledger.read_reply(known.request)
    # The socket of the killed process is still there, and is replaced.
    assert trial.settings.socket.exists()
    with serving(trial):
        assert refusal_code(call(trial, other)) == "answered"
        answer = call(trial, frame)
        assert refusal_code(answer) is None
        assert stored in (None, answer)
        assert call(trial, frame) == answer
    assert trial.ledger.filter.spent.total() == 1
