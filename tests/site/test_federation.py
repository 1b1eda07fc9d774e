"""A whole federation of sites, each with its own ledger and key, over bytes alone."""

import pytest
import torch

from pacdp.federation import LocalModel, Server, run_rounds
from pacdp.federation.messages import Refusal
from pacdp.federation.wire import ReceivedReply, Wire, frame_digest
from pacdp.site import Site
from tests.site.trial import ROUNDS, heart_plan, make_trial


class SiteTransport:
    """Carries frames to the sites; each message arrives twice, and the first answer is lost."""

    def __init__(self, trials, sites):
        self.trials, self.sites = trials, sites
        self.wire = Wire.for_model(LocalModel(trials[0].plan))
        self.codes = []

    def ask(self, broadcast, client_ids):
        answers = {}
        for number in client_ids:
            trial, site = self.trials[number], self.sites[number]
            frame = self.wire.encode_broadcast(broadcast, sign=trial.sign)
            lost, answer = site.answer(frame), site.answer(frame)
            assert lost == answer
            received = self.wire.decode_answer(
                answer,
                client=number,
                broadcast=broadcast,
                asked=frame_digest(frame),
                verify=trial.verify,
            )
            if isinstance(received, Refusal):
                self.codes.append(received.reason)
                answers[number] = received
            else:
                assert isinstance(received, ReceivedReply)
                answers[number] = received.reply
        return answers


@pytest.mark.parametrize("upload", ["exact", "coarse"])
@pytest.mark.parametrize("method", ["fixed", "aqc"])
def test_four_hospitals_train_over_bytes(tmp_path, method, upload):
    plan = heart_plan(method=method, training={"upload": upload})
    trials = []
    for client in plan.clients:
        (folder := tmp_path / client.name).mkdir()
        trials.append(make_trial(folder, plan, client=client.name))
    # One hospital has spent some of its budget elsewhere.
    trials[0].ledger.reserve(*plan.planned_releases(0), run="another")
    sites = [Site(trial.settings) for trial in trials]
    try:
        server = Server(plan, LocalModel(plan).state())
        transport = SiteTransport(trials, sites)
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
