"""A site of one hospital in a temporary folder, and its coordinator."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import save

from pacdp.data import load_dataset, partition_records
from pacdp.federation import LocalModel, Population, Recipe, Server, Training, make_plan
from pacdp.federation.configuration import Privacy
from pacdp.federation.wire import Kind, Wire, frame_digest, frame_kind, plan_digest
from pacdp.federation.wire.frames import write_frame
from pacdp.keys import create_key, load_signer, make_verifier, read_public_key
from pacdp.methods import build_method
from pacdp.privacy import SQLiteLedger
from pacdp.site import SiteSettings
from tests.cli.command import COMMAND

ROUNDS = 6


def heart_plan(*, method="fixed", rounds=ROUNDS, settings=None, population=None, **changes):
    data = load_dataset("heart")
    partition = partition_records(data, "natural")
    training = {"rounds": rounds, "local_epochs": 1} | changes.pop("training", {})
    recipe = Recipe(training=Training(**training), privacy=Privacy(**{"epsilon": 1.0} | changes))
    population = population or Population.of(data, partition)
    return make_plan(recipe, build_method(method, settings), population, 0)


@dataclass
class Trial:
    folder: Path
    plan: object

    def __post_init__(self):
        self.local_model = LocalModel(self.plan)
        self.wire = Wire.for_model(self.local_model)

    @property
    def toml(self):
        return self.folder / "site.toml"

    @property
    def settings(self):
        return SiteSettings.load_toml(self.toml)

    @property
    def ledger(self):
        return SQLiteLedger(self.folder / "a.ledger")

    @property
    def verify(self):
        """How the coordinator verifies what the site has signed."""
        return make_verifier([read_public_key(self.folder / "site.key")])

    def sign(self, message):
        return load_signer(self.folder / "coordinator.key")(message)

    def broadcast(self, number, *, by=None, state=None, model=None, factor=1.0, **changes):
        """A signed broadcast of a round, in which anything may be wrong.

        ``factor`` multiplies the weights, ``by`` signs it, and ``changes`` are of the header.
        """
        sent = Server(self.plan, self.local_model.state()).broadcast(0)
        if model is None:
            model = {name: value * factor for name, value in sent.model.items()}
        payload = save(model)
        header = {
            "length": len(payload),
            "plan": self.wire.digest,
            "round": number,
            "run": self.plan.run,
            "state": sent.shared_state if state is None else state,
        }
        return write_frame(Kind.BROADCAST, header | changes, payload, sign=by or self.sign)

    def read(self, answer, frame):
        """The answer to a broadcast, verified as the coordinator does; a code for a refusal."""
        if frame_kind(answer) is Kind.REFUSAL:
            return refusal_code(answer)
        broadcast = self.wire.decode_broadcast(
            frame, client=self.number, verify=make_verifier(self.settings.coordinator)
        )
        return self.wire.decode_reply(
            answer,
            client=self.number,
            broadcast=broadcast,
            broadcast_digest=frame_digest(frame),
            verify=self.verify,
        )

    @property
    def number(self):
        return [client.name for client in self.plan.clients].index(self.settings.client)


def read_header(frame):
    """The header of any message, not verified."""
    size = int.from_bytes(frame[7:11], "big")
    return json.loads(frame[11 : 11 + size])


def refusal_code(frame):
    """The code of a refusal; None for a reply."""
    return None if frame_kind(frame) is Kind.REPLY else read_header(frame)["code"]


def make_trial(folder, plan=None, *, client="cleveland", accepted=True, records=None, **changes):
    """Write everything that a site needs into a folder."""
    plan = plan or heart_plan()
    number = [each.name for each in plan.clients].index(client)
    if records is None:
        data = load_dataset("heart")
        records = partition_records(data, "natural").client_records(data)[number]
    arrays = {"features": records.features, "labels": records.labels}
    if records.units is not None:
        arrays["units"] = records.units
    if records.budgets is not None:
        arrays["budgets"] = records.budgets
    np.savez(folder / "records.npz", **arrays)
    (folder / "records.npz").chmod(0o600)
    SQLiteLedger.create(
        folder / "a.ledger",
        client=client,
        budget=plan.budget(number),
        levels=plan.level_budgets(number),
    )
    plan.save(folder / "plan.json")
    create_key(folder / "site.key")
    other = folder / "other"
    other.mkdir()
    (other / "head").write_text(SQLiteLedger(folder / "a.ledger").head)
    values = {
        "client": client,
        "data": "records.npz",
        "ledger": "a.ledger",
        "plan": "plan.json",
        "coordinator": create_key(folder / "coordinator.key"),
        "key": "site.key",
        "socket": "site.sock",
        "head": "other/head",
        "interval": 0.05,
    } | ({"accepted": plan_digest(plan)} if accepted else {})
    lines = [f"{name} = {value!r}\n" for name, value in (values | changes).items()]
    (folder / "site.toml").write_text("".join(lines))
    return Trial(folder, plan)


@contextmanager
def serving(trial, *options, ready=True):
    """A site process at its socket, which may be told to kill itself."""
    script = Path(__file__).with_name("serve.py")
    with starting(script, trial.toml, *options) as process:
        if ready:
            wait_until_ready(process)
        yield process


@contextmanager
def serving_installed(trial):
    """The site process of the installed command."""
    with starting(COMMAND, "site", "serve", "--settings", trial.toml) as process:
        wait_until_ready(process)
        yield process


@contextmanager
def starting(program, *arguments):
    """A process of a Python program, which is ended with SIGTERM if it has not ended before."""
    with subprocess.Popen(
        [sys.executable, program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def wait_until_ready(process):
    assert process.stdout.readline(), process.stderr.read()
