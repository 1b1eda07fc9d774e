"""A coordinator process, and sites in this process that a relay asks."""

import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pacdp.coordinator import CoordinatorSettings
from pacdp.coordinator.status import read_status
from pacdp.data import load_dataset
from pacdp.keys import create_key, read_public_key
from pacdp.relay_protocol import RelayRequest, RoundState
from pacdp.site import Site
from pacdp.sockets import ask
from tests.cli.command import COMMAND
from tests.site.trial import heart_plan, make_trial


@dataclass
class Federation:
    folder: Path
    plan: object
    trials: list

    @property
    def toml(self):
        return self.folder / "coordinator.toml"

    @property
    def settings(self):
        return CoordinatorSettings.load_toml(self.toml)

    @property
    def status(self):
        return read_status(self.settings)

    @property
    def names(self):
        return [client.name for client in self.plan.clients]


def make_federation(folder, plan=None, **changes):
    plan = plan or heart_plan(training={"upload": "coarse"})
    public = create_key(folder / "coordinator.key")
    trials = []
    for client in plan.clients:
        (own := folder / client.name).mkdir()
        trials.append(make_trial(own, plan, client=client.name, coordinator=public, interval=1e-3))
    plan.save(folder / "plan.json")
    test = load_dataset("heart").test
    np.savez(folder / "public.npz", features=test.features, labels=test.labels)
    values = {
        "plan": "plan.json",
        "key": "coordinator.key",
        "log": "run.db",
        "socket": "coordinator.sock",
        "results": "results",
        "evaluation": "public.npz",
        "minimum": len(plan.clients),
    } | changes
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    lines += ["[sites]\n"] + [
        f"{client.name} = '{read_public_key(trial.folder / 'site.key')}'\n"
        for client, trial in zip(plan.clients, trials, strict=True)
    ]
    (folder / "coordinator.toml").write_text("".join(lines))
    return Federation(folder, plan, trials)


@contextmanager
def coordinating(federation):
    """The coordinator's process, as the command starts it."""
    command = [COMMAND, "federation", "serve", "--settings", federation.toml]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(60)


@contextmanager
def open_sites(federation):
    sites = {}
    try:
        for name, trial in zip(federation.names, federation.trials, strict=True):
            sites[name] = Site(trial.settings)
        yield sites
    finally:
        for site in sites.values():
            site.close()


def exchange(federation, *request):
    message = ask(federation.settings.socket, RelayRequest(*request).encode(), timeout=30)
    return RoundState.decode(message)


def relay(federation, answer, *, until=lambda state: False, seconds=60):
    """Carry messages until the run has ended, or a condition holds; return the last state."""
    held, frame, limit = None, b"", time.monotonic() + seconds
    state, sent = exchange(federation, None), b""
    while time.monotonic() < limit:
        state, sent = state if isinstance(state, tuple) else (state, sent)
        if state.state != "open" or until(state):
            return state
        if sent:
            held, frame = state.round, sent
        if state.round != held:
            state = exchange(federation, None)
            continue
        answered = False
        for name in state.sites:
            with suppress(LookupError):
                content = answer(name, frame)
                state = exchange(federation, held, name, content)
                answered = True
                break
        if not answered:
            time.sleep(0.02)
            state = exchange(federation, held)
    raise AssertionError("the run does not end")
