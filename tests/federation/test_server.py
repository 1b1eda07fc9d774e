"""The server: weights, averaging, momentum, Adam, and the mean of the last models."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from pacdp.clipping.numerics import grid_step
from pacdp.data import load_dataset, partition_records
from pacdp.errors import InputError
from pacdp.federation import (
    Aggregation,
    Broadcast,
    Client,
    LocalModel,
    Privacy,
    Reply,
    Server,
    Training,
    simulate,
)
from pacdp.federation.client import simulated_noise
from pacdp.federation.weights import client_weights
from pacdp.methods import build_method
from pacdp.tasks import Classification
from tests.plans import plan_for, plan_of

SIZES = {"a": 100, "b": 300, "c": 50}
RULES = get_args(Aggregation.model_fields["weights"].annotation)


def plan(epsilon=(0.1, 1.0, 5.0), name="fixed", **server):
    return plan_of(
        sizes=SIZES,
        shape=(3,),
        task=Classification(2),
        method=build_method(name),
        training=Training(rounds=4, local_steps=1),
        privacy=Privacy(epsilon=epsilon),
        server=Aggregation(**server),
    )


def test_weights_by_hand():
    made = {rule: plan(weights=rule) for rule in RULES}
    z = np.array([client.noise_multiplier for client in made["size"].clients])
    n = np.array([100.0, 300.0, 50.0])
    expected = {
        "size": n,
        "epsilon": n * [0.1, 1.0, 5.0],
        "inverse-noise": n / z,
        "tempered": n / (z**2 + np.median(z) ** 2),
        "inverse-variance": (n / z) ** 2,
    }
    for rule, raw in expected.items():
        found = client_weights(made[rule], [0, 1, 2], round=0)
        assert found == pytest.approx(raw / raw.sum(), rel=1e-12)
        some = client_weights(made[rule], [2, 0], round=0)
        assert some == pytest.approx(raw[[2, 0]] / raw[[2, 0]].sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "shared_state"), [("cgm-median", {"bounds": [0.5, 2.0, 0.1]}), ("aqc", {"bound": 0.7})]
)
def test_inverse_variance_knows_the_bound_that_a_tracker_clips_at(name, shared_state):
    made = plan(name=name, weights="inverse-variance")
    z = np.array([client.noise_multiplier for client in made.clients])
    divisors = np.array([client.divisor for client in made.clients])
    bounds = np.array(shared_state.get("bounds", [shared_state.get("bound")] * 3))
    raw = (divisors / (z * bounds)) ** 2
    found = client_weights(made, [0, 1, 2], round=2, shared_state=shared_state)
    assert found == pytest.approx(raw / raw.sum(), rel=1e-12)
    # The server uses what was public when the clients were asked.
    server = start(made)
    server.shared_state = shared_state
    server.combine([reply(client, value) for client, value in enumerate((1.0, 2.0, 4.0))])
    assert float(server.model["w"][0]) == pytest.approx(float(found @ [1.0, 2.0, 4.0]), rel=1e-6)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "inverse-variance"])
def test_equal_budgets_weigh_by_size(rule):
    made = plan(epsilon=1.0, weights=rule)
    assert client_weights(made, [0, 1], round=0) == pytest.approx([0.25, 0.75])


def test_without_noise_weights_are_by_size():
    made = plan(name="fedavg", weights="inverse-noise")
    assert client_weights(made, [0, 1], round=0) == pytest.approx([0.25, 0.75])


def reply(client, value, number=0):
    return Reply(client, number, {"w": torch.tensor([value, -value])})


def start(made):
    return Server(made, {"w": torch.zeros(2)})


def test_by_default_nobody_counts_more_than_twice_the_median_client():
    made = plan(epsilon=(0.1, 0.1, 5.0))
    assert made.server.weights == "tempered"
    shares = client_weights(made, [0, 1, 2], round=0) / [client.records for client in made.clients]
    assert shares[0] == pytest.approx(shares[1])
    assert 1.9 < shares[2] / shares[0] <= 2


def test_averaging_is_over_those_who_answered():
    server = start(plan(weights="size"))
    server.combine([reply(0, 1.0), reply(1, 5.0)])
    assert server.model["w"].tolist() == pytest.approx([4.0, -4.0])
    server.combine([])
    assert server.model["w"].tolist() == pytest.approx([4.0, -4.0])


def test_momentum_by_hand():
    server = start(plan(optimiser="momentum", momentum=0.5, lr=0.1))
    for _ in range(3):
        server.combine([reply(0, 1.0)])
    # Speeds 1, 1.5, 1.75.
    assert server.model["w"].tolist() == pytest.approx([0.425, -0.425])


def test_adam_by_hand():
    server = start(plan(optimiser="adam", lr=0.1))
    server.combine([reply(0, 3.0)])
    assert server.model["w"].tolist() == pytest.approx([0.1, -0.1], rel=1e-6)


def test_the_last_models_are_averaged():
    server = start(plan(average_last=0.5))
    for number in range(4):
        server.combine([reply(0, 1.0, number)])
        server.finish_round(number)
    assert server.model["w"].tolist() == pytest.approx([3.5, -3.5])


def test_a_share_of_rounds_is_rounded_up():
    server = start(plan(average_last=0.05))
    for number in range(4):
        server.combine([reply(0, 1.0, number)])
        server.finish_round(number)
    assert server.model["w"].tolist() == pytest.approx([4.0, -4.0])


def test_replies_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="are of rounds"):
        start(plan()).combine([reply(0, 1.0, 0), reply(1, 1.0, 1)])
    with pytest.raises(InputError, match="one client answers twice"):
        start(plan()).combine([reply(0, 1.0), reply(0, 1.0)])


def test_one_spoiled_update_does_not_spoil_the_model():
    server = start(plan())
    spoiled = Reply(2, 0, reply(2, 1.0).update, [{"count": torch.tensor(float("nan"))}])
    server.combine([reply(0, float("nan")), reply(1, 5.0), spoiled])
    assert server.spoiled == [0, 2]
    assert server.model["w"].tolist() == pytest.approx([5.0, -5.0])


def test_a_broadcast_cannot_be_changed_from_outside():
    server = start(plan())
    sent = server.broadcast(0)
    sent.model["w"].add_(5)
    assert server.model["w"].tolist() == [0.0, 0.0]
    assert isinstance(sent, Broadcast)


def test_a_run_goes_on_without_those_who_fail_or_refuse():
    data = load_dataset("heart")
    hospitals = partition_records(data, "natural")
    made = plan_for(
        data,
        hospitals,
        training=Training(
            rounds=12, local_steps=1, clients_per_round=2, sampling="uniform", cap=0.2
        ),
        privacy=Privacy(epsilon=1.0),
        seed=3,
    )
    result = simulate(made, data, hospitals, failure_rate=0.3)
    assert sum(result.refused.values()) > 0
    assert sum(result.failed.values()) > 0
    answered = sum(row.answered for row in result.history)
    lost = sum(result.refused.values()) + sum(result.failed.values())
    assert answered + lost == 12 * 2
    # Some of those who failed had paid: their releases are in the book, and not in the model.
    paid = sum(client.releases for client in result.clients())
    assert answered <= paid <= answered + sum(result.failed.values())


def test_reads_like_algorithm_1():
    data = load_dataset("heart")
    hospitals = partition_records(data, "natural")
    made = plan_for(data, hospitals, training=Training(rounds=3, local_steps=1))
    clients = [
        Client(n, made, records, noise=simulated_noise(made.seed, n))
        for n, records in enumerate(hospitals.client_records(data))
    ]
    server = Server(made, clients[0].local_model.state())
    for number in range(made.rounds):
        sent = server.broadcast(number)
        server.combine([clients[n].answer(sent) for n in made.participants(number)])
    result = simulate(made, data, hospitals)
    # The engines sum in another order; a sum that falls between two grid points may be rounded to
    # either, once in each of three rounds.
    step = grid_step(1.0, 28) / min(client.divisor for client in made.clients)
    for name, value in server.model.items():
        atol = 3 * made.training.optimiser.lr * step
        torch.testing.assert_close(result.model[name], value, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, -1.0, None, "x"])
def test_a_scale_that_is_none_spoils_one_reply_and_not_the_model(scale):
    made = plan(weights="inverse-noise")
    server = Server(made, LocalModel(made).state())
    update = {name: torch.ones_like(value) for name, value in server.model.items()}
    server.combine([Reply(0, 0, update), Reply(1, 0, update, noise_scale=scale)])
    assert server.spoiled == [1]
    assert all(bool(torch.isfinite(value).all()) for value in server.model.values())
