"""Site processes at real sockets: users, sizes, times, signals, and kill -9 at bad moments."""

import os
import random
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
from tests.site.test_answer import refusals
from tests.site.trial import ROUNDS, heart_plan, make_trial, refusal_code, serving

CODES = {
    *("malformed", "signature", "run", "plan", "round", "participant", "weights", "state"),
    *("answered", "budget", "busy", "lost", None),
}


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


def test_random_kills_never_give_two_answers(tmp_path):
    trial = make_trial(tmp_path, interval=0.01)
    frames = [trial.broadcast(number) for number in range(ROUNDS)]
    draw, answers = random.Random(2), {}
    for life in range(4):
        with serving(trial) as process:
            for number in range(ROUNDS if life == 3 else life + 2):
                answer = call(trial, frames[number])
                assert answers.setdefault(number, answer) == answer
            if life < 3:
                # A request is in flight when the process is killed.
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(trial.settings.socket))
                    frame = frames[life + 2]
                    connection.sendall(LENGTH.pack(len(frame)) + frame)
                    time.sleep(draw.random() * 0.05)
                    process.kill()
                    process.wait(60)
    assert all(refusal_code(answer) is None for answer in answers.values())
    ledger = trial.ledger
    assert ledger.filter.spent.total() == len(ledger.rounds) == len(answers) == ROUNDS


def test_a_thousand_hostile_requests(tmp_path):
    """Never over the budget, never two answers for a round, only fixed codes."""
    plan = heart_plan(training={"clients_per_round": 2})
    trial = make_trial(tmp_path, plan, interval=0.001)
    # The budget ends before the plan does.
    number = [client.name for client in plan.clients].index("cleveland")
    trial.ledger.reserve(*plan.planned_releases(number), run="another")
    good = [trial.broadcast(n, factor=f) for n in range(ROUNDS) for f in (1.0, 2.0)]
    forged = [frame for frame, _ in refusals(trial, tmp_path)]
    draw, answers, seen = random.Random(3), {}, set()

    def mutate(frame):
        content = bytearray(frame)
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
        return bytes(content)[: draw.choice((len(content), draw.randrange(len(content))))]

    kinds = (
        lambda: draw.choice(good),
        lambda: draw.choice(forged),
        lambda: mutate(draw.choice(good)),
        lambda: draw.randbytes(draw.randrange(300)),
        lambda: draw.choice(good)[:-64] + draw.randbytes(64),
        lambda: draw.choice(list(answers.values()) or good),
    )
    with serving(trial):
        for _ in range(1000):
            frame = draw.choice(kinds)()
            answer = call(trial, frame)
            seen.add(code := refusal_code(answer))
            if code is None:
                assert frame in good
                number = trial.read(answer, frame).reply.round
                assert answers.setdefault(number, answer) == answer
    assert seen <= CODES
    assert {None, "answered", "budget", "signature", "malformed", "participant"} <= seen
    ledger = trial.ledger
    assert ledger.filter.within_budget
    assert ledger.filter.realised.epsilon <= ledger.filter.budget.epsilon
    # Each answered round was debited once, besides the other run's.
    assert ledger.filter.spent.total() == len(answers) + 1 == len(ledger.rounds) + 1
