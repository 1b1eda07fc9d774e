"""Coarse uploads: how much noise an upload has, and what rounding to a part of it changes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pacdp.curve import Curve
from pacdp.data import Dataset, Records, load_dataset, partition_records
from pacdp.federation import (
    Broadcast,
    BudgetSchedule,
    Client,
    LocalModel,
    Model,
    Optimiser,
    Plan,
    Privacy,
    Training,
    simulate,
)
from pacdp.federation.budgets import RecordBudgets
from pacdp.federation.client import simulated_noise
from pacdp.federation.engines.base import choose_engine
from pacdp.federation.uploads import (
    LARGEST_WHOLE,
    coarse_step,
    coarse_steps,
    coarsen,
    count_steps,
    upload_noise,
    upload_step,
)
from pacdp.methods import build_method
from pacdp.methods.fixed import Fixed
from pacdp.offline.grid_simulation import score_plans
from pacdp.tasks import Classification
from tests.plans import plan_for, plan_of

pytestmark = pytest.mark.usefixtures("two_threads")
HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")
CURVE = {"curve": Curve(family="power", coefficients=(0.5, 0.25))}
SETTINGS = {"pac-dp": CURVE, "cgm-median": {"speed": 0.8}}
SGD, MOMENTUM = Optimiser(lr=0.3), Optimiser(name="momentum", lr=0.3, momentum=0.6)
# Nothing but zeros: the gradients of all weights are zero, and their updates are noise alone.
BLANK = Records(features=np.zeros((40, 20_000), np.float32), labels=np.arange(40) % 2)


def blank_plan(name="fixed", **changes):
    parts = {
        "training": Training(rounds=4, local_epochs=2, batch=16, optimiser=SGD, upload="coarse"),
        "privacy": Privacy(epsilon=1.0),
        "model": Model(name="logistic"),
    }
    return plan_of(
        method=build_method(name, SETTINGS.get(name, {})),
        sizes={"blank": len(BLANK)},
        shape=(20_000,),
        task=Classification(2),
        **parts | changes,
    )


def answer(plan, round=3):  # noqa: A002
    """Return the broadcast of a round and a blank client's reply."""
    model = {name: torch.zeros_like(value) for name, value in LocalModel(plan).state().items()}
    broadcast = Broadcast(round, model, plan.algorithm.initial_state(1))
    client = Client(0, plan, BLANK, noise=simulated_noise(plan.seed, 0))
    return broadcast, client.answer(broadcast)


def exact(plan):
    training = plan.training.model_copy(update={"upload": "exact"})
    return plan.model_copy(update={"training": training})


NOISY = [
    ("fixed", {}),
    ("pac-dp", {}),
    ("fixed", {"privacy": Privacy(epsilon=1.0, adjacency="replace-one")}),
    ("pac-dp", {"privacy": Privacy(records=RecordBudgets(levels=(0.1, 2.0), shares=(0.5, 0.5)))}),
    ("fixed", {"training": Training(rounds=4, local_steps=3, optimiser=MOMENTUM, upload="coarse")}),
    ("fixed", {"privacy": Privacy(epsilon=1.0, spending=BudgetSchedule(policy="late"))}),
    ("dp-fedavg", {}),
    ("smallest-budget", {}),
    ("rpdp-fl", {"training": Training(rounds=4, local_steps=3, upload="coarse")}),
    ("nbafl", {}),
    (
        "nbafl",
        {
            "training": Training(
                rounds=4, local_steps=3, optimiser=Optimiser(name="adam"), upload="coarse"
            )
        },
    ),
    ("nbafl-original", {}),
    ("noise-once", {"privacy": Privacy(epsilon=0.5, scope="per-release")}),
    ("aqc", {}),
    ("cgm-median", {}),
]


@pytest.mark.parametrize(("name", "changes"), NOISY)
def test_the_plan_knows_the_noise_of_an_upload_and_rounding_adds_little(name, changes):
    plan = blank_plan(name, **changes)
    broadcast, clean = answer(exact(plan))
    _, coarse = answer(plan)
    terms = {
        "scale": clean.noise_scale,
        "shared_state": broadcast.shared_state,
        "released": clean.released,
    }
    noise, step = upload_noise(plan, 0, 3, **terms), upload_step(plan, 0, 3, **terms)
    weight = next(name for name in clean.update if "weight" in name)
    before, after = clean.update[weight].double(), coarse.update[weight].double()
    # 40,000 values, so the deviation is known to 0.35 %.
    assert before.std().item() == pytest.approx(noise, rel=0.02)
    assert noise / 4 * (1 - 1 / 128) <= step <= noise / 4
    error = after - before
    assert error.abs().max() <= step * (0.5 + 1e-4)
    assert error.var().item() <= 0.0055 * noise**2
    assert after.var().item() <= 1.01 * before.var().item()
    # The error says nothing about the value.
    assert abs(np.corrcoef(error.flatten(), before.flatten())[0, 1]) < 0.02
    whole = (after / step).round()
    assert torch.equal((whole * step).float(), coarse.update[weight])


@pytest.mark.parametrize(
    ("name", "optimiser"), [("fixed", Optimiser(name="adam", lr=0.01)), ("fedavg", SGD)]
)
def test_without_public_noise_an_upload_stays_as_it_is(name, optimiser):
    training = Training(rounds=4, local_steps=2, optimiser=optimiser, upload="coarse")
    plan = blank_plan(name, training=training)
    assert upload_step(plan, 0, 0) is None
    for value, other in zip(
        answer(plan)[1].update.values(), answer(exact(plan))[1].update.values(), strict=True
    ):
        assert torch.equal(value, other)


class Doubled(Fixed):
    name = "doubled"

    def train(self, context):
        return super().train(context)


def test_a_method_that_trains_in_its_own_way_must_say_how_much_noise_there_is():
    plan = blank_plan()
    doubled = plan.model_copy(update={"method": f"{__name__}:Doubled"})
    assert upload_step(plan, 0, 0)
    assert upload_step(doubled, 0, 0) is None


def test_exact_plans_keep_their_names_and_coarse_ones_have_their_own(tmp_path):
    plan = blank_plan()
    before = exact(plan)
    assert "upload" not in before.model_dump()["training"]
    assert "upload" not in before.model_dump_json()
    assert plan.run != before.run
    assert plan.terms == before.terms
    for each in (plan, before):
        each.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json").run == each.run


@given(st.floats(1e-25, 1e25))
def test_a_step_is_at_most_a_quarter_of_the_noise_and_has_eight_bits(noise):
    step = coarse_step(noise)
    assert noise / 4 * (1 - 1 / 128) <= step <= noise / 4
    assert step == float(np.float32(step))
    assert (math.frexp(step)[0] * 256).is_integer()
    # The last bit of a mathematical library makes no difference, unless by a rare accident.
    assert coarse_steps(np.array([noise]))[0] == step


@pytest.mark.parametrize("noise", [0.0, 1e-32, 1e32])
def test_noise_beyond_single_precision_is_left_alone(noise):
    assert coarse_step(noise) is None


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.floats(1e-20, 1e20),
)
def test_rounding_twice_is_rounding_once(values, noise):
    step = coarse_step(noise)
    once = coarsen(torch.tensor(values), step)
    assert torch.equal(coarsen(once, step), once)
    finite = once[torch.isfinite(torch.tensor(values))]
    whole = count_steps(finite, step)
    assert whole.abs().max() <= LARGEST_WHOLE if len(whole) else True
    assert torch.equal(whole * step, finite)
    assert not torch.signbit(once[once == 0]).any()


def test_what_is_not_finite_stays_for_the_server_to_see():
    values = coarsen(torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30]), 0.5)
    assert torch.equal(values.isfinite(), torch.tensor([False, False, False, True]))
    assert values[3] == LARGEST_WHOLE * 0.5


def heart_plan(**changes):
    parts = {
        "method": build_method("pac-dp", CURVE),
        "training": Training(rounds=6, local_epochs=2, batch=64, upload="coarse"),
        "privacy": Privacy(epsilon=(0.5, 1.0, 2.0, 5.0)),
    }
    return plan_for(HEART, HOSPITALS, **parts | changes)


def updates(plan, engine, data=HEART, parts=HOSPITALS):
    local_model = LocalModel(plan)
    clients = {
        number: Client(number, plan, records, noise=simulated_noise(plan.seed, number))
        for number, records in enumerate(parts.client_records(data))
    }
    broadcast = Broadcast(0, local_model.state(), plan.algorithm.initial_state(len(clients)))
    return choose_engine(engine, local_model).answer(clients, broadcast)


@pytest.mark.parametrize("optimiser", [SGD, MOMENTUM])
def test_every_engine_rounds_to_the_same_steps(optimiser):
    training = Training(rounds=6, local_epochs=2, batch=64, optimiser=optimiser, upload="coarse")
    plan = heart_plan(training=training)
    serial, threaded, stacked = (updates(plan, e) for e in ("serial", "threaded", "stacked"))
    for client, reply in serial.items():
        step = upload_step(plan, client, 0)
        for name, value in reply.update.items():
            assert torch.equal(value, threaded[client].update[name])
            other = stacked[client].update[name]
            for each in (value, other):
                assert torch.equal(count_steps(each, step) * step, each)
            # Engines agree to rounding errors, so a value on the border may fall to either side.
            differing = (value - other).abs()
            assert differing.max() <= 1.01 * step
            assert (differing > 0).sum() <= 1


@pytest.mark.parametrize("optimiser", [SGD, MOMENTUM])
@pytest.mark.parametrize("model", [Model(name="logistic"), Model(name="mlp")])
def test_the_grid_rounds_as_a_single_run_does(model, optimiser):
    data = load_dataset("synthetic", records=1000, features=8, clients=4)
    split = partition_records(data, "dirichlet", clients=4, seed=0, alpha=0.5)
    training = Training(rounds=4, local_steps=2, optimiser=optimiser, upload="coarse")
    plan = plan_for(
        *(data, split),
        method=build_method("pac-dp", CURVE),
        model=model,
        training=training,
        privacy=Privacy(epsilon=(0.05, 0.1, 1.0, 2.0)),
    )
    (together,) = score_plans([plan], [(data, split)])
    alone = plan.task.score(simulate(plan, data, split).metrics)
    assert abs(together - alone) <= 2.5 / len(data.test)


def test_accuracy_on_heart_is_the_same_within_seeds():
    scores = {"exact": [], "coarse": []}
    for upload, seed in ((upload, seed) for upload in scores for seed in range(8)):
        training = Training(rounds=10, local_epochs=2, batch=64, upload=upload)
        result = simulate(heart_plan(training=training, seed=seed), HEART, HOSPITALS)
        scores[upload].append(result.metrics["accuracy"])
    difference = np.subtract(scores["coarse"], scores["exact"])
    assert abs(difference.mean()) <= max(0.01, 2 * np.std(scores["exact"]) / math.sqrt(8))


def test_images_are_rounded_in_stacks_as_one_by_one():
    small = load_dataset("digits")
    data = Dataset(
        name="digits",
        train=Records(features=small.train.features[:200], labels=small.train.labels[:200]),
        test=small.test,
        task=small.task,
        provenance=small.provenance,
    )
    parts = partition_records(data, "quantity", clients=3, seed=1)
    plan = plan_for(
        *(data, parts),
        model=Model(name="mlp", settings={"hidden": 8}),
        training=Training(rounds=2, local_epochs=1, batch=20, upload="coarse"),
    )
    serial, stacked = (updates(plan, e, data, parts) for e in ("serial", "stacked"))
    for client, reply in serial.items():
        step = upload_step(plan, client, 0)
        for name, value in reply.update.items():
            assert (value - stacked[client].update[name]).abs().max() <= 1.01 * step
