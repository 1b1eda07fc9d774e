"""Attacks on real site processes, by a server that has the coordinator's key, and by bad luck.

Whatever happens: never over the budget, never two different answers to one round, and nothing but
replies and fixed codes.
"""

import random
import shutil
import signal
import socket
import time
from contextlib import ExitStack, suppress

import pytest
import torch
from safetensors.torch import save

from pacdp.federation.wire import Code, Kind
from pacdp.federation.wire.frames import write_frame
from pacdp.sockets import LENGTH, ask
from tests.site.test_answer import refusals
from tests.site.trial import (
    ROUNDS,
    heart_plan,
    make_trial,
    read_header,
    refusal_code,
    serving,
    serving_installed,
    starting,
)

CODES = {*map(str, Code), None}


def call(trial, frame):
    return ask(trial.settings.socket, frame, timeout=60)


class Attacker:
    """Draws hostile requests; most of them are signed by the coordinator's key."""

    def __init__(self, trial, folder, seed):
        self.trial, self.draw, self.answers = trial, random.Random(seed), {}
        # Two different broadcasts for each round, in any order and any number.
        self.good = [trial.broadcast(n, factor=f) for n in range(ROUNDS) for f in (1.0, 2.0)]
        self.forged = [frame for frame, _ in refusals(trial, folder)]
        self.torch = torch.Generator().manual_seed(seed)

    def request(self):
        return self.draw.choice(
            (
                lambda: self.draw.choice(self.good),
                lambda: self.draw.choice(self.forged),
                lambda: self.damage(self.draw.choice(self.good)),
                lambda: self.draw.randbytes(self.draw.randrange(300)),
                lambda: self.draw.choice(self.good)[:-64] + self.draw.randbytes(64),
                lambda: self.draw.choice(list(self.answers.values()) or self.good),
                lambda: self.trial.broadcast(self.draw.randrange(ROUNDS), state={"bound": 1.0}),
                self.sign_damage,
                self.sign_header,
                self.sign_weights,
            )
        )()

    def damage(self, frame):
        content = bytearray(frame)
        for _ in range(self.draw.randrange(1, 4)):
            content[self.draw.randrange(len(content))] ^= self.draw.randrange(1, 256)
        return bytes(content)[: self.draw.choice((len(content), self.draw.randrange(len(content))))]

    def sign_damage(self):
        message = self.damage(self.draw.choice(self.good)[:-64])
        return message + self.trial.sign(message)

    def sign_header(self):
        numbers, texts = (0, -1, 2**63, 10**400, 1.5, True), ("", "x" * 3000, "\ud7ff")
        values = (*numbers, *texts, None, [], {}, [[[]]])
        name = self.draw.choice(("length", "plan", "round", "run", "state", "more"))
        number = self.draw.randrange(ROUNDS)
        return self.trial.broadcast(number, **{name: self.draw.choice(values)})

    def sign_weights(self):
        """Weights of any size, signed and of the right form, or with another payload."""
        number, scale = self.draw.randrange(ROUNDS), 10.0 ** self.draw.randrange(-45, 39)
        model = {
            name: torch.randn(value.shape, generator=self.torch) * scale
            for name, value in self.trial.local_model.state().items()
        }
        if self.draw.random() < 0.7:
            return self.trial.broadcast(number, model=model)
        payload = self.damage(save(model))
        header = read_header(self.good[0]) | {"length": len(payload), "round": number}
        return write_frame(Kind.BROADCAST, header, payload, sign=self.trial.sign)

    def take(self, frame, answer):
        """Check an answer, and return its code."""
        code = refusal_code(answer)
        assert code in CODES
        header = read_header(answer)
        if code is None:
            number = self.trial.read(answer, frame).reply.round
            assert self.answers.setdefault(number, answer) == answer
        else:
            assert set(header) == {"client", "code", "round", "run"}
        return code

    def check_ledger(self, *, elsewhere=0):
        ledger = self.trial.ledger
        assert ledger.filter.within_budget
        assert ledger.filter.realised.epsilon <= ledger.filter.budget.epsilon
        assert ledger.filter.spent.total() == len(ledger.rounds) + elsewhere
        assert set(self.answers) <= {number for _, number in ledger.rounds}
        for number, answer in self.answers.items():
            record = ledger.find_round(self.trial.plan.run, number)
            assert ledger.read_reply(record.request) == answer


def test_a_thousand_requests_of_a_server_that_has_the_key(tmp_path):
    plan = heart_plan(training={"clients_per_round": 2})
    trial = make_trial(tmp_path, plan, interval=0.001)
    # The budget ends before the plan does.
    trial.ledger.reserve(*plan.planned_releases(trial.number), run="another")
    attacker, seen = Attacker(trial, tmp_path, seed=3), set()
    with serving(trial):
        for _ in range(1000):
            frame = attacker.request()
            seen.add(attacker.take(frame, call(trial, frame)))
    assert {None, "answered", "budget", "signature", "malformed", "participant"} <= seen
    assert {"round", "run", "plan", "weights", "state"} <= seen
    attacker.check_ledger(elsewhere=1)


def test_hostile_requests_to_the_installed_command(tmp_path):
    trial = make_trial(tmp_path)
    attacker = Attacker(trial, tmp_path, seed=4)
    with serving_installed(trial):
        for _ in range(60):
            frame = attacker.request()
            attacker.take(frame, call(trial, frame))
    assert attacker.answers
    attacker.check_ledger()


def test_a_dozen_kills_at_any_moment(tmp_path):
    """Between requests, in the middle of one, and between debit, reply and head."""
    trial = make_trial(tmp_path, interval=0.01)
    attacker, draw = Attacker(trial, tmp_path, seed=5), random.Random(6)
    moments = ["debited", "unpublished", "stored", "", ""]
    for life in range(13):
        moment = draw.choice(moments)
        with serving(trial, moment) as process:
            with suppress(OSError):
                for _ in range(draw.randrange(1, 4)):
                    frame = draw.choice(attacker.good[: 2 + life])
                    attacker.take(frame, call(trial, frame))
                # One more is in flight.
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(trial.settings.socket))
                    frame = draw.choice(attacker.good)
                    connection.sendall(LENGTH.pack(len(frame)) + frame)
                    time.sleep(draw.random() * 0.1)
            process.kill()
            assert process.wait(60) == -signal.SIGKILL
    with serving(trial):
        codes = {}
        for frame in attacker.good:
            code = attacker.take(frame, call(trial, frame))
            codes.setdefault(read_header(frame)["round"], []).append(code)
    # Of the two broadcasts for a round one is answered, and only that one.
    assert all(sorted(pair, key=str) == [None, "answered"] for pair in codes.values())
    assert len(attacker.answers) == ROUNDS
    attacker.check_ledger()


def test_an_older_ledger_is_of_no_use(tmp_path):
    """Restoring a backup restores no budget, and gives no second answer."""
    trial = make_trial(tmp_path, interval=0.01)
    attacker, path = Attacker(trial, tmp_path, seed=7), tmp_path / "a.ledger"
    copies = []
    for number in range(3):
        shutil.copy(path, tmp_path / f"copy-{number}")
        copies.append(tmp_path / f"copy-{number}")
        with serving(trial):
            frame = attacker.good[2 * number]
            attacker.take(frame, call(trial, frame))
    newest = path.read_bytes()
    assert len(attacker.answers) == 3
    for copy in copies:
        shutil.copy(copy, path)
        with serving(trial):
            for frame in attacker.good:
                assert attacker.take(frame, call(trial, frame)) == "budget"
        assert path.read_bytes() == copy.read_bytes()
    path.write_bytes(newest)
    with serving(trial):
        for frame in attacker.good:
            attacker.take(frame, call(trial, frame))
    attacker.check_ledger()


def test_two_processes_on_one_ledger(tmp_path):
    """The second does not start; if its lock is deleted, the ledger's transactions remain."""
    trial = make_trial(tmp_path, interval=0.01)
    attacker = Attacker(trial, tmp_path, seed=8)
    text = trial.toml.read_text()
    other = tmp_path / "other.toml"
    other.write_text(text.replace("site.sock", "other.sock"))
    link = tmp_path / "link.toml"
    (tmp_path / "link.ledger").symlink_to("a.ledger")
    link.write_text(other.read_text().replace("a.ledger", "link.ledger"))
    script = "tests/site/serve.py"
    with ExitStack() as stack:
        stack.enter_context(serving(trial))
        for toml in (other, link):
            with starting(script, toml) as second:
                assert second.wait(60) == 1
                assert "another site process uses this ledger" in second.stderr.read()
        (tmp_path / ".a.ledger.lock").unlink()
        second = stack.enter_context(starting(script, other))
        assert second.stdout.readline(), second.stderr.read()
        sockets, draw, codes = (
            [trial.settings.socket, tmp_path / "other.sock"],
            random.Random(9),
            [],
        )
        for _ in range(80):
            frame = draw.choice(attacker.good)
            codes.append(attacker.take(frame, ask(draw.choice(sockets), frame, timeout=60)))
    assert "busy" in codes
    assert len(attacker.answers) == ROUNDS
    attacker.check_ledger()


def test_many_signals_do_not_disturb_an_answer(tmp_path):
    """Each is noted in a buffer that is soon full; the answer in hand is finished all the same."""
    trial = make_trial(tmp_path, interval=1.0)
    with serving(trial) as process, socket.socket(socket.AF_UNIX) as connection:
        frame = trial.broadcast(0)
        connection.connect(str(trial.settings.socket))
        connection.sendall(LENGTH.pack(len(frame)) + frame)
        while trial.ledger.find_round(trial.plan.run, 0) is None:
            time.sleep(0.01)
        for _ in range(2000):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0002)
        size = LENGTH.unpack(connection.recv(4, socket.MSG_WAITALL))[0]
        assert refusal_code(connection.recv(size, socket.MSG_WAITALL)) is None
        # A signal that arrives after it has stopped listening ends it at once.
        assert process.wait(60) in (0, -signal.SIGTERM), process.stderr.read()


@pytest.mark.parametrize("size", [2**20, 2**31])
def test_no_memory_is_taken_for_what_is_only_announced(tmp_path, size):
    trial = make_trial(tmp_path, interval=0.01)
    with serving(trial) as process:
        before = resident(process.pid)
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(trial.settings.socket))
                connection.sendall(LENGTH.pack(size))
                length = LENGTH.unpack(connection.recv(4, socket.MSG_WAITALL))[0]
                assert refusal_code(connection.recv(length, socket.MSG_WAITALL)) == "malformed"
        assert resident(process.pid) - before < 20_000_000


def resident(process):
    """The bytes of a process that are in memory."""
    with open(f"/proc/{process}/statm") as stream:  # noqa: PTH123
        return int(stream.read().split()[1]) * 4096
