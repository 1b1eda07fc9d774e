"""A transport is one method, and the loop needs nothing else."""

import pytest
import torch

from pacdp.data import load_dataset, partition_records
from pacdp.errors import InputError
from pacdp.federation import Client, Population, Privacy, Recipe, Server, Training, make_plan
from pacdp.federation.client import simulated_noise
from pacdp.federation.messages import Refusal, Reply
from pacdp.federation.rounds import run_rounds
from pacdp.federation.simulation import simulate
from pacdp.methods import build_method

DATA = load_dataset("heart")
HOSPITALS = partition_records(DATA, "natural")


class Recording:
    """Reaches clients directly, writes down what passes, and can drop or delay replies."""

    def __init__(self, clients, *, drop=(), delay=()):
        self.clients, self.drop, self.delay = clients, set(drop), set(delay)
        self.sent, self.late = [], {}

    def ask(self, broadcast, client_ids):
        self.sent.append((broadcast.round, tuple(client_ids)))
        answers = {}
        for who in client_ids:
            reply = self.clients[who].answer(broadcast)
            if (broadcast.round, who) in self.delay:
                self.late[who] = reply
            elif (broadcast.round, who) not in self.drop:
                answers[who] = reply
        return answers


class Outcomes:
    def __init__(self):
        self.seen = []

    def after_round(self, outcome):
        self.seen.append(outcome)


def federation(**faults):
    recipe = Recipe(training=Training(rounds=3, local_steps=1), privacy=Privacy(epsilon=1.0))
    plan = make_plan(recipe, build_method("fixed"), Population.of(DATA, HOSPITALS), seed=0)
    clients = [
        Client(number, plan, records, noise=simulated_noise(0, number))
        for number, records in enumerate(HOSPITALS.client_records(DATA))
    ]
    return plan, Server(plan, clients[0].local_model.state()), Recording(clients, **faults)


def test_a_transport_of_ones_own_runs_a_federation():
    plan, server, transport = federation()
    run_rounds(server, transport)
    assert transport.sent == [(number, (0, 1, 2, 3)) for number in range(3)]
    expected = simulate(plan, DATA, HOSPITALS, engine="serial").model
    for name, value in server.model.items():
        assert torch.equal(value, expected[name])


def test_clients_whose_reply_is_lost_or_late_have_failed_and_paid():
    plan, server, transport = federation(drop=[(0, 1)], delay=[(1, 2)])
    outcomes = Outcomes()
    run_rounds(server, transport, [outcomes])
    assert [outcome.failed for outcome in outcomes.seen] == [(1,), (2,), ()]
    assert [len(outcome.answered) for outcome in outcomes.seen] == [3, 3, 4]
    spent = [client.ledger.filter.spent.total() for client in transport.clients]
    assert spent == [client.releases for client in plan.clients]
    # A reply of an earlier round that comes in now is not combined.
    with pytest.raises(InputError, match="must be of round 3"):
        server.complete_round(2, (2,), transport.late)


@pytest.mark.parametrize("answer", [Refusal(3, "no"), Reply(3, 0, {})])
def test_an_answer_of_somebody_who_was_not_asked_is_refused(answer):
    _, server, _ = federation()
    for number in (3, 0):
        with pytest.raises(InputError, match="was not asked in round 1"):
            server.complete_round(0, (0, 1), {number: answer})
