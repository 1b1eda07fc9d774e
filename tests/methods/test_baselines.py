"""The rivals: each against its own formulas, and all under the same contract."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.clipping import SystemNoise
from pacdp.clipping.numerics import grid_step, shrink_bound
from pacdp.data import load_dataset, partition_records
from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import (
    Broadcast,
    Client,
    LocalModel,
    Optimiser,
    Privacy,
    Server,
    Training,
    simulate,
)
from pacdp.methods import METHODS, Answer, Method, build_method, register_method
from pacdp.privacy import (
    Adjacency,
    Guarantee,
    MemoryLedger,
    Release,
    account,
    calibrate,
    total_mu,
)
from pacdp.tasks import Classification
from tests.plans import plan_of

HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")
RECORDS = HOSPITALS.client_records(HEART)
CURVE = {"curve": {"family": "power", "coefficients": [1.0, 0.4]}}


def plan(name, data=HEART, split=HOSPITALS, rounds=4, epsilon=1.0, given=None, **training):
    training = {"local_epochs": 2, "batch": 64} | training
    return plan_of(
        sizes=split.sizes_by_client,
        shape=data.shape,
        task=data.task,
        method=build_method(
            name, given if given is not None else (CURVE if name == "pac-dp" else {})
        ),
        training=Training(rounds=rounds, **training),
        privacy=Privacy(epsilon=epsilon),
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("set_name", ["heart", "digits"])
def test_every_method_keeps_every_budget(name, set_name):
    data, split = HEART, HOSPITALS
    if set_name == "digits":
        data = load_dataset("digits")
        split = partition_records(data, "dirichlet", clients=4)
    made = plan(name, data, split, rounds=2, epsilon=(0.1, 0.5, 1.0, 4.0))
    result = simulate(made, data, split)
    for number, client in enumerate(result.clients()):
        if not METHODS[name].private:
            assert client.epsilon_spent is client.epsilon_budget is None
            assert result.ledgers[number] is None
            continue
        assert client.refused == 0
        assert client.releases == made.clients[number].releases > 0
        assert client.epsilon_spent == pytest.approx(client.epsilon_planned, rel=1e-9)
        ledger = result.ledgers[number].filter
        assert ledger.charged.epsilon <= ledger.budget.epsilon
        if METHODS[name].label:
            assert client.label == name
            assert ledger.budget.epsilon >= client.epsilon_planned
        else:
            assert client.epsilon_spent <= client.epsilon_budget
            assert ledger.budget.epsilon == client.epsilon_budget
    assert all(bool(torch.isfinite(value).all()) for value in result.model.values())
    if METHODS[name].private:
        # What a round says was spent is no less than what any client realised.
        realised = max(client.epsilon_spent for client in result.clients())
        assert result.history[-1].epsilon_spent >= realised * (1 - 1e-9)
        assert result.history[-1].adjacency == "zero-out"


@given(
    # rPDP-FL's rates are searched numerically, which takes seconds; it has tests of its own.
    name=st.sampled_from(["pac-dp", "fixed", "dp-fedavg", "nbafl", "cgm-median", "aqc"]),
    rounds=st.integers(1, 3),
    epsilon=st.sampled_from([0.3, (0.1, 0.2, 1.0, 3.0)]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    failures=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 20),
)
@settings(max_examples=20)
def test_no_rival_overspends(name, rounds, epsilon, adjacency, failures, seed):
    made = plan_of(
        sizes=HOSPITALS.sizes_by_client,
        shape=HEART.shape,
        task=Classification(2),
        method=build_method(name, CURVE if name == "pac-dp" else {}),
        training=Training(rounds=rounds, local_steps=2, clients_per_round=3, sampling="uniform"),
        privacy=Privacy(epsilon=epsilon, adjacency=adjacency),
        seed=seed,
    )
    result = simulate(made, HEART, HOSPITALS, failure_rate=failures, evaluate_every=rounds)
    for client, ledger in zip(result.clients(), result.ledgers, strict=True):
        assert client.epsilon_spent <= client.epsilon_planned <= client.epsilon_budget
        assert ledger.filter.charged.epsilon <= client.epsilon_budget


def answer(made, number=0, **settings):
    client = Client(number, made, RECORDS[number], **settings)
    return client.answer(Broadcast(0, LocalModel(made).state(), made.algorithm.initial_state(4)))


class Silence:
    """Noise that is none, to see what it would have covered."""

    def integers(self, count, scale):
        return torch.zeros(count, dtype=torch.float64)


def silent(number):
    return Silence()


def test_nbafl_by_hand():
    made = plan("nbafl", epsilon=0.5, given={"clipping_bound": 0.3})
    (charge,) = made.clients[0].charges
    # One upload a round, sensitivity 2C: σ = 2C·z for four releases.
    assert charge.noise_multiplier == pytest.approx(
        2 * float(calibrate(epsilon=0.5, releases=4).z), rel=1e-9
    )
    assert (charge.sensitivity, charge.each) == (2.0, 1)
    free = plan("fedavg")
    plain = answer(free).update
    clipped = answer(made, noise=silent).update
    length = math.sqrt(sum(float(value.double().square().sum()) for value in plain.values()))
    factor = min(1.0, shrink_bound(0.3, 1) / length)
    # Rounded to the grid of an upload of this sensitivity.
    atol = grid_step(0.6, sum(value.numel() for value in plain.values()))
    for name, value in plain.items():
        assert torch.allclose(clipped[name], value * factor, atol=atol)


def test_nbafl_replace_one_costs_the_same():
    both = [
        plan_of(
            sizes=HOSPITALS.sizes_by_client,
            shape=HEART.shape,
            task=Classification(2),
            method=build_method("nbafl"),
            training=Training(rounds=4, local_steps=1),
            privacy=Privacy(epsilon=1.0, adjacency=adjacency),
        )
        for adjacency in ("zero-out", "replace-one")
    ]
    assert both[0].clients[0].charges == both[1].clients[0].charges


def test_nbafl_as_published():
    made = plan("nbafl-original", epsilon=0.5, given={"clipping_bound": 0.3})
    c = math.sqrt(2 * math.log(1.25e5))
    sigma = c * 4 * (2 * 0.3 / 200) / 0.5
    assert made.clients[0].charges[0].noise_multiplier * 0.3 == pytest.approx(sigma, rel=1e-12)
    # What it really certifies: four Gaussian releases of sensitivity 2C.
    mu = math.sqrt(4) * 0.6 / sigma
    assert total_mu(made.planned_releases(0)) * 2 == pytest.approx(mu, rel=1e-12)
    assert made.planned_guarantee(0).epsilon > 20 * 0.5
    assert made.budget(0).epsilon == pytest.approx(made.planned_guarantee(0).epsilon, rel=1e-6)
    update = answer(made, noise=silent).update
    start = LocalModel(made).state()
    sent = {name: update[name] + start[name] for name in update}
    length = math.sqrt(sum(float(value.double().square().sum()) for value in sent.values()))
    assert length <= 0.3


def test_nbafl_sends_noise_down_when_few_take_part():
    many = partition_records(load_dataset("digits"), "iid", clients=30)
    often = plan("nbafl-original", load_dataset("digits"), many, rounds=10, clients_per_round=3)
    rule, clients = often.algorithm, often.clients
    c = math.sqrt(2 * math.log(1.25e5))
    fewest = min(client.records for client in clients)
    expected = 2 * c * math.sqrt(10**2 - 1 * 30) / (fewest * 30 * 1.0)
    assert rule.broadcast_noise(rounds=10, clients=clients, delta=1e-5) == pytest.approx(expected)
    start = LocalModel(often).state()
    server = Server(often, start)
    sent = server.broadcast(0).model
    # Updates are from what was sent, so that noise does not pile up.
    assert all(torch.equal(server.model[name], value) for name, value in sent.items())
    spread = float((sent["1.weight"] - start["1.weight"]).std())
    assert spread == pytest.approx(expected, rel=0.15)
    always = plan("nbafl-original")
    quiet = Server(always, LocalModel(always).state()).broadcast(0).model
    assert all(torch.equal(quiet[n], v) for n, v in LocalModel(always).state().items())


def test_rpdp_solves_its_rates_with_a_real_accountant():
    made = plan("rpdp-fl", epsilon=(0.1, 0.5, 1.0, 4.0), rounds=3, local_epochs=None, local_steps=5)
    charges = [client.charges[0] for client in made.clients]
    assert len({charge.noise_multiplier for charge in charges}) == 1
    whole = calibrate(epsilon=4.0, releases=15)
    assert charges[0].noise_multiplier == pytest.approx(float(whole.noise_multiplier))
    rates = [charge.sampling_rate for charge in charges]
    assert rates == sorted(rates)
    assert rates[-1] == 1.0
    for number, epsilon in enumerate((0.1, 0.5, 1.0, 4.0)):
        cost = made.planned_guarantee(number).epsilon
        assert epsilon * (1 - 1e-3) < cost <= epsilon
        assert made.clients[number].divisor == pytest.approx(
            rates[number] * RECORDS[number].features.shape[0]
        )


def test_rpdp_draws_records_by_chance_and_tells_nobody():
    made = plan(
        "rpdp-fl", epsilon=(0.5, 4.0, 4.0, 4.0), rounds=3, local_epochs=None, local_steps=400
    )
    client = Client(0, made, RECORDS[0])
    sizes = []
    rate = made.clients[0].charges[0].sampling_rate
    source = SystemNoise()

    def coins(count, wanted):
        drawn = SystemNoise.coins(source, count, wanted)
        sizes.append(int(drawn.sum()))
        assert (len(drawn), wanted) == (200, rate)
        return drawn

    source.coins = coins
    client.noise = lambda number: source
    reply = client.answer(Broadcast(0, LocalModel(made).state()))
    assert np.mean(sizes) == pytest.approx(200 * rate, rel=0.1)
    assert np.var(sizes) == pytest.approx(200 * rate * (1 - rate), rel=0.25)
    assert reply.released == ()
    assert client.ledger.filter.frozen.total() == 1200  # the whole plan, before the first release


@pytest.mark.parametrize("wrong", ["whole batches", "another rate"])
def test_a_sampled_release_must_be_of_a_sample(wrong):
    context = {"local_epochs": None, "local_steps": 2}
    made = plan("rpdp-fl", epsilon=(0.5, 4.0, 4.0, 4.0), rounds=1, **context)
    client = Client(0, made, RECORDS[0])

    class Wrong(type(client.method)):
        def train(self, context):
            if wrong == "whole batches":
                return Answer(context.release(context.clipped_sum(next(context.batches()), 1.0)))
            return Answer(context.release(context.sampled_sum(1.0, 1.0)))

    client.method = Wrong()
    with pytest.raises(BudgetExceededError, match="was not paid for"):
        client.answer(Broadcast(0, LocalModel(made).state()))


def test_a_sampled_plan_needs_a_ledger_of_its_own():
    budget = Guarantee(epsilon=5.0, adjacency=Adjacency.ZERO_OUT)
    ledger = MemoryLedger(budget)
    ledger.reserve(calibrate(epsilon=1.0, releases=1).release(), run="before")
    context = {"local_epochs": None, "local_steps": 2}
    made = plan("rpdp-fl", epsilon=(0.5, 4.0, 4.0, 4.0), rounds=1, **context)
    client = Client(0, made, RECORDS[0], ledger=ledger)
    with pytest.raises(BudgetExceededError, match="cleveland: its ledger is in use"):
        client.answer(Broadcast(0, LocalModel(made).state()))


def test_rpdp_needs_a_total_budget():
    with pytest.raises(InputError, match="needs a total budget"):
        plan_of(
            sizes={"a": 10},
            shape=(3,),
            task=Classification(2),
            method=build_method("rpdp-fl"),
            training=Training(rounds=2, local_steps=1),
            privacy=Privacy(epsilon=1.0, scope="per-release"),
        )


@pytest.mark.parametrize("name", ["cgm-median", "aqc"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_counts_and_gradients_share_the_budget(name, adjacency):
    made = plan_of(
        sizes=HOSPITALS.sizes_by_client,
        shape=HEART.shape,
        task=Classification(2),
        method=build_method(name, {"share": 0.1}),
        training=Training(rounds=13, local_epochs=5, batch=64),
        privacy=Privacy(epsilon=1.0, adjacency=adjacency),
    )
    gradients, counts = made.clients[0].charges
    whole = float(calibrate(epsilon=1.0, releases=65).z)
    assert gradients.z == pytest.approx(whole / math.sqrt(0.9), rel=1e-9)
    assert counts.z == pytest.approx(whole / math.sqrt(0.1), rel=1e-9)
    assert 1 / gradients.z**2 + 1 / counts.z**2 == pytest.approx(1 / whole**2, rel=1e-9)
    assert made.planned_guarantee(0).epsilon == pytest.approx(1.0, rel=1e-9)


def test_a_count_that_is_not_centred_would_overspend():
    """Its sensitivity is 1 and not ½: ε = 1 becomes 1.155."""
    whole = float(calibrate(epsilon=1.0, releases=65).z)
    z = {"adjacency": "zero-out", "sensitivity": 1.0, "count": 65}
    releases = [
        Release(noise_multiplier=whole / math.sqrt(0.9), **z),
        Release(noise_multiplier=whole / math.sqrt(0.1) / 2, **z),
    ]
    assert account(releases).epsilon == pytest.approx(1.155, abs=5e-4)


def test_the_bound_moves_by_the_formula():
    tracker = build_method("cgm-median")
    # b̃ = 3/10 + ½ = 0.8, so C falls by exp(−0.2·0.3).
    assert tracker.move_bound(2.0, count=3.0, divisor=10.0) == pytest.approx(2 * math.exp(-0.06))
    assert tracker.move_bound(2.0, count=-99.0, divisor=10.0) == pytest.approx(2 * math.exp(0.1))
    server = Server(plan("aqc"), {"w": torch.zeros(1)})
    client = server.plan.clients[0]
    replies = {0: (client, [{"count": torch.tensor(0.25 * client.divisor)}])}
    moved = server.plan.algorithm.update_state({"bound": 1.0}, replies)
    assert moved["bound"] == pytest.approx(math.exp(-0.2 * 0.25))


def test_the_tracker_finds_the_median():
    """With much budget the bound settles where half of the gradients are longer."""
    made = plan(
        *("cgm-median",),
        rounds=60,
        epsilon=10_000.0,
        local_epochs=None,
        local_steps=1,
        batch="full",
        optimiser=Optimiser(lr=1e-9),
    )
    result_bounds = made.algorithm.initial_state(4)
    server = Server(made, LocalModel(made).state())
    clients = [Client(n, made, records) for n, records in enumerate(RECORDS)]
    for number in range(made.rounds):
        sent = server.broadcast(number)
        server.combine([client.answer(sent) for client in clients])
    assert server.shared_state["bounds"] != result_bounds["bounds"]
    for client, bound in zip(clients, server.shared_state["bounds"], strict=True):
        lengths = client.local_model.gradient.norms(*client.records.tensors(client.plan.task))
        share = float((lengths <= bound).float().mean())
        assert share == pytest.approx(0.5, abs=0.12)


def test_bounds_come_from_what_was_released_and_nothing_else():
    """Whoever has the released counts can follow the bounds, and they are all that is needed."""
    made = plan("cgm-median", epsilon=1.0)
    client = Client(0, made, RECORDS[0])
    server = Server(made, LocalModel(made).state())
    reply = client.answer(server.broadcast(0))
    assert len(reply.released) == made.clients[0].steps
    server.combine([reply])
    bound = 0.1
    for count in reply.released:
        bound = made.algorithm.move_bound(bound, float(count["count"]), made.clients[0].divisor)
    assert server.shared_state["bounds"][0] == pytest.approx(bound)


@pytest.mark.parametrize("name", ["cgm-median", "aqc"])
@pytest.mark.parametrize("wrong", [float("nan"), -1.0, float("inf"), "1.0"])
def test_a_bound_that_is_none_costs_nothing(name, wrong):
    made = plan(name)
    client = Client(0, made, RECORDS[0])
    for shared_state in (
        {},
        {"bounds": [wrong] * 4, "bound": wrong},
        {"bounds": [], "bound": wrong},
    ):
        with pytest.raises(InputError, match="bound"):
            client.answer(Broadcast(0, LocalModel(made).state(), shared_state))
    assert client.ledger.count_releases(made.run).total() == 0


def test_reading_the_quantile_for_free_certifies_nothing():
    made = plan("non-private-quantile", epsilon=0.1)
    result = simulate(made, HEART, HOSPITALS)
    assert {client.epsilon_spent for client in result.clients()} == {None}
    assert made.clients[0].noise_multiplier > 10  # and still the noise of its budget


def test_a_method_of_ones_own():
    @register_method
    class Normalised(Method):
        """Every gradient has length C, however short it is."""

        name = "normalised"
        clipping_bound: float = 1.0

        def bound(self, epsilon, *, round, rounds):  # noqa: A002
            return self.clipping_bound

        def train(self, context):
            for batch in context.batches():
                # A bound so small that everything is clipped gives directions only.
                context.step(context.release(context.clipped_sum(batch, 1e-3)))
            return Answer(context.update())

    try:
        made = plan("normalised", given={})
        result = simulate(made, HEART, HOSPITALS)
        assert result.clients()[0].epsilon_spent == pytest.approx(1.0, rel=1e-9)
    finally:
        del METHODS["normalised"]


def test_noise_once_adds_the_noise_of_a_step_and_is_charged_what_that_is_worth():
    lr, bound, epsilon, delta = 0.05, 2.55, 0.1, 1e-5
    # 200 records in four batches, twice: eight steps of at most lr·C.
    upload = lr * bound * 8
    made = plan(
        *("noise-once", HEART, HOSPITALS, 3),
        epsilon=epsilon,
        given={"clipping_bound": upload},
        optimiser=Optimiser(lr=lr),
    )
    client = made.clients[0]
    assert (client.batches, client.steps, client.divisor) == (4, 8, 1.0)
    z = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    sigma = client.noise_multiplier * upload
    assert sigma == pytest.approx(lr * z * bound / 50)
    # One record can turn an update of that length into any other.
    (release,) = made.planned_releases(0)
    assert release.z == pytest.approx(sigma / (2 * upload))
    result = simulate(made, HEART, HOSPITALS)
    client = result.clients()[0]
    assert client.label == "noise-once"
    assert client.epsilon_spent == pytest.approx(account(release.times(3)).epsilon)
    assert client.epsilon_spent > 10 * epsilon
    with pytest.raises(InputError, match="whole local epochs"):
        plan("noise-once", local_epochs=None, local_steps=7)


@pytest.mark.parametrize("name", ["nbafl", "nbafl-original", "noise-once"])
def test_an_upload_is_divided_by_nothing(name):
    """Its signal is at most C and its noise σ·√d, whatever the number of records."""
    from pacdp.federation.results import signal_to_noise

    made = plan(name)
    client = made.clients[0]
    assert signal_to_noise(client, 28) == pytest.approx(1 / (client.noise_multiplier * 28**0.5))
