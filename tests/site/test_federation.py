"""A whole federation of sites, each with its own ledger and key, over bytes alone."""

import inspect
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch

import pacdp.site
from pacdp.data import load_dataset, partition_records
from pacdp.errors import InputError
from pacdp.federation import Client, LocalModel, Server, run_rounds, simulate
from pacdp.federation.client import simulated_noise
from pacdp.federation.messages import Refusal
from pacdp.federation.wire import ReceivedReply, frame_digest
from pacdp.site import Site, SiteSettings
from pacdp.sockets import ask
from tests.site.seeded import SeededSite
from tests.site.trial import ROUNDS, heart_plan, make_trial, starting, wait_until_ready

SEEDED = Path(__file__).with_name("seeded.py")


def make_trials(folder, plan, **changes):
    """A folder for each client of a plan, and one coordinator."""
    trials = []
    for client in plan.clients:
        (own := folder / client.name).mkdir()
        if trials:
            changes["coordinator"] = trials[0].settings.coordinator[0]
        trials.append(make_trial(own, plan, client=client.name, **changes))
    for trial in trials[1:]:
        shutil.copy(trials[0].folder / "coordinator.key", trial.folder)
    return trials


class FrameTransport:
    """Carries frames to sites, each by its function; every message is sent twice.

    The first answer is lost, and the second one must be the same.
    """

    def __init__(self, trials, sites):
        self.trials, self.sites = trials, sites
        self.wire = trials[0].wire
        self.codes = []

    def ask(self, broadcast, client_ids):
        frame = self.wire.encode_broadcast(broadcast, sign=self.trials[0].sign)
        with ThreadPoolExecutor(len(self.sites)) as pool:
            calls = {number: pool.submit(self.send, number, frame) for number in client_ids}
        return {
            number: self.read(call.result(), number, broadcast, frame)
            for number, call in calls.items()
        }

    def send(self, number, frame):
        lost, answer = self.sites[number](frame), self.sites[number](frame)
        assert lost == answer
        return answer

    def read(self, answer, number, broadcast, frame):
        received = self.wire.decode_answer(
            answer,
            client=number,
            broadcast=broadcast,
            broadcast_digest=frame_digest(frame),
            verify=self.trials[number].verify,
        )
        if isinstance(received, Refusal):
            self.codes.append(received.reason)
            return received
        assert isinstance(received, ReceivedReply)
        return received.reply


@pytest.mark.parametrize("upload", ["exact", "coarse"])
@pytest.mark.parametrize("method", ["fixed", "aqc"])
def test_four_hospitals_train_over_bytes(tmp_path, method, upload):
    plan = heart_plan(method=method, training={"upload": upload})
    trials = make_trials(tmp_path, plan)
    # One hospital has spent some of its budget elsewhere.
    trials[0].ledger.reserve(*plan.planned_releases(0), run="another")
    sites = [Site(trial.settings) for trial in trials]
    try:
        server = Server(plan, LocalModel(plan).state())
        transport = FrameTransport(trials, [site.answer for site in sites])
        run_rounds(server, transport, [])
    finally:
        for site in sites:
            site.close()
    assert all(torch.isfinite(value).all() for value in server.model.values())
    assert transport.codes == ["budget"]
    for number, trial in enumerate(trials):
        each = plan.clients[number].each
        assert trial.ledger.filter.spent.total() == each * ROUNDS
        assert len(trial.ledger.rounds) == ROUNDS - (number == 0)
        assert trial.ledger.filter.realised.epsilon <= 1.0


CURVE = {"curve": {"family": "power", "coefficients": [0.5, 0.25]}}
METHODS = {"fixed": None, "pac-dp": CURVE, "aqc": None}


@pytest.mark.parametrize("upload", ["exact", "coarse"])
@pytest.mark.parametrize("method", METHODS)
def test_four_processes_with_seeded_noise_equal_a_simulation(tmp_path, method, upload):
    data = load_dataset("heart")
    plan = heart_plan(
        method=method,
        settings=METHODS[method],
        rounds=10,
        training={"local_epochs": 2, "batch": 64, "upload": upload},
        epsilon=(0.5, 1.0, 2.0, 5.0),
    )
    trials = make_trials(tmp_path, plan)
    server = Server(plan, LocalModel(plan).state(), noise=simulated_noise(plan.seed, -1))
    with ExitStack() as stack:
        processes = [stack.enter_context(starting(SEEDED, trial.toml)) for trial in trials]
        for process in processes:
            wait_until_ready(process)
        sites = [partial(ask, trial.settings.socket, timeout=60) for trial in trials]
        transport = FrameTransport(trials, sites)
        run_rounds(server, transport, [])
    assert not transport.codes
    expected = simulate(plan, data, partition_records(data, "natural"), engine="serial")
    for name, value in expected.model.items():
        assert torch.equal(server.model[name], value)
    for trial, ledger in zip(trials, expected.ledgers, strict=True):
        assert trial.ledger.filter.realised == ledger.filter.realised
        assert len(trial.ledger.rounds) == 10


def test_nothing_installed_can_seed_the_noise_of_a_site(tmp_path):
    """Neither a setting nor a name in the package's code: seeds are in tests only."""
    assert not [name for name in SiteSettings.model_fields if "seed" in name or "noise" in name]
    folder = Path(pacdp.site.__file__).parent
    for path in folder.glob("*.py"):
        content = path.read_text()
        assert "simulated_noise" not in content
        assert "SimulatedNoise" not in content
        assert "noise=" not in content
    assert "SEEDED" not in (folder.parent / "cli" / "site.py").read_text()
    parameters = inspect.signature(Site).parameters
    assert list(parameters) == ["settings"]
    trial = make_trial(tmp_path)
    # Without the wrapper of the tests a client refuses.
    refused = pytest.raises(InputError, match="its noise must be SystemNoise")
    with SeededSite(trial.settings) as site, refused:
        Client(
            *(site.number, trial.plan, site._records),
            ledger=site.ledger,
            noise=simulated_noise(0, site.number),
        )
