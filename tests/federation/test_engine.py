"""However a round is computed, the numbers are the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pacdp.clipping import ClippedGradient, StackedGradient
from pacdp.curve import Curve
from pacdp.data import Dataset, Records, load_dataset, partition_records
from pacdp.errors import BudgetExceededError, InputError, TrainingError
from pacdp.federation import (
    BudgetSchedule,
    LocalModel,
    Model,
    Optimiser,
    Privacy,
    Training,
    simulate,
)
from pacdp.federation.engines.base import choose_engine
from pacdp.methods import METHODS, build_method
from pacdp.methods.fixed import Fixed
from pacdp.tasks import Regression
from tests.plans import plan_for

pytestmark = pytest.mark.usefixtures("two_threads")
HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")
CURVE = {"curve": Curve(family="power", coefficients=(0.5, 0.25))}


def larger(records):
    """Digits of 16 x 16 pixels, as the CNN needs them."""
    pixels = records.features.repeat(2, axis=2).repeat(2, axis=3)
    return Records(features=pixels[:400], labels=records.labels[:400])


SMALL = load_dataset("digits")
DIGITS = Dataset(
    name="digits",
    train=larger(SMALL.train),
    test=larger(SMALL.test),
    task=SMALL.task,
    provenance=SMALL.provenance,
)


def plan(parts, data, **changes):
    values = {
        "training": Training(rounds=3, local_epochs=2, batch=64),
        "privacy": Privacy(epsilon=1.0),
    }
    return plan_for(data, parts, **values | changes)


def same(one, other):
    """The same model to rounding, and the same books."""
    for name, value in one.model.items():
        torch.testing.assert_close(value, other.model[name], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(one.clients(), other.clients(), strict=True):
        for key in ("epsilon_spent", "releases", "refused", "failed", "mu_spent"):
            assert getattr(mine, key) == getattr(theirs, key), key
    assert [row.answered for row in one.history] == [row.answered for row in other.history]


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["pac-dp", "fixed", "dp-fedavg"]),
    kind=st.sampled_from(["iid", "quantity"]),
    clients=st.integers(2, 12),
    share=st.sampled_from([0.5, 1.0]),
    batch=st.sampled_from(["full", 7, 30]),
    work=st.sampled_from([{"local_epochs": 2}, {"local_steps": 3}]),
    optimiser=st.sampled_from(["sgd", "momentum", "adam"]),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    policy=st.sampled_from(["even", "late", "replan"]),
    failures=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
def test_together_or_one_by_one(
    name, kind, clients, share, batch, work, optimiser, adjacency, policy, failures, seed
):
    parts = partition_records(HEART, kind, clients=clients, seed=seed)
    random = np.random.default_rng(seed)
    made = plan(
        parts,
        HEART,
        method=build_method(name, CURVE if name == "pac-dp" else {}),
        training=Training(
            rounds=3,
            clients_per_round=max(1, int(share * clients)),
            sampling="uniform",
            cap=0.5,
            batch=batch,
            optimiser=Optimiser(name=optimiser, lr=0.05),
            **work,
        ),
        privacy=Privacy(
            epsilon=tuple(random.uniform(0.5, 5, clients)),
            adjacency=adjacency,
            spending=BudgetSchedule(policy=policy),
        ),
        seed=seed,
    )
    one, other = (
        simulate(made, HEART, parts, engine=engine, failure_rate=failures)
        for engine in ("serial", "stacked")
    )
    same(one, other)


@pytest.mark.parametrize("engine", ["stacked", "threaded"])
@pytest.mark.parametrize("model", [Model(name="cnn"), Model(name="mlp", settings={"hidden": 8})])
def test_images_of_clients_that_differ(engine, model):
    parts = partition_records(DIGITS, "quantity", clients=5, seed=1)
    made = plan(parts, DIGITS, model=model, training=Training(rounds=2, local_epochs=1, batch=50))
    same(
        simulate(made, DIGITS, parts, engine="serial"),
        simulate(made, DIGITS, parts, engine=engine),
    )


@pytest.mark.parametrize("name", ["aqc", "nbafl", "fedavg", "rpdp-fl"])
def test_on_threads_any_method(name):
    made = plan(HOSPITALS, HEART, method=build_method(name))
    same(
        simulate(made, HEART, HOSPITALS, engine="serial"),
        simulate(made, HEART, HOSPITALS, engine="threaded"),
    )


def test_a_regression_is_stacked_as_well():
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 3)).astype(np.float32)
    records = Records(features=features, labels=features.sum(1))
    data = Dataset(
        name="line", train=records, test=records, task=Regression(), provenance=HEART.provenance
    )
    parts = partition_records(data, "iid", clients=3)
    made = plan(parts, data)
    same(
        simulate(made, data, parts, engine="serial"),
        simulate(made, data, parts, engine="stacked"),
    )


def test_a_record_that_is_not_finite_counts_for_nothing_in_a_stack():
    """A gradient that overflows is left out of its own client's sum, and of nobody else's."""
    features = HEART.train.features.copy()
    features[3] = 1e30
    data = replace(HEART, train=replace(HEART.train, features=features))
    parts = partition_records(data, "natural")
    made = plan(parts, data)
    one = simulate(made, data, parts, engine="serial")
    other = simulate(made, data, parts, engine="stacked")
    assert all(bool(torch.isfinite(value).all()) for value in other.model.values())
    same(one, other)


def test_many_clients_are_computed_in_several_programs(monkeypatch):
    """What memory allows is not what a round asks for."""
    parts = partition_records(HEART, "iid", clients=20)
    made = plan(parts, HEART)
    whole = simulate(made, HEART, parts, engine="stacked")
    sizes = []
    original = StackedGradient.__call__

    def counted(self, parameters, inputs, *rest, **more):
        sizes.append(len(inputs))
        return original(self, parameters, inputs, *rest, **more)

    monkeypatch.setattr("pacdp.federation.engines.stacked.LARGEST_STACK", 13 * 30 * 3)
    monkeypatch.setattr(StackedGradient, "__call__", counted)
    same(whole, simulate(made, HEART, parts, engine="stacked"))
    assert max(sizes) <= 3


class Net(nn.Module):
    """No chain."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(13, 2)

    def forward(self, inputs):
        return self.layer(inputs)


def test_a_mistake_names_client_round_and_step(monkeypatch):
    calls = []
    original = ClippedGradient.__call__

    def breaks(self, *rest, **more):
        calls.append(rest)
        if len(calls) > 2:
            raise RuntimeError("a mistake\nof two lines")
        return original(self, *rest, **more)

    monkeypatch.setattr(ClippedGradient, "__call__", breaks)
    with pytest.raises(TrainingError) as raised:
        simulate(plan(HOSPITALS, HEART), HEART, HOSPITALS, engine="serial")
    said = str(raised.value)
    assert said.startswith("client cleveland, round 1, step 3")
    assert "RuntimeError: a mistake of two lines" in said


def test_a_mistake_in_a_stack_says_how_to_find_it(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(StackedGradient, "__call__", broken)
    with pytest.raises(TrainingError, match=r"round 1, step 1 .the engine serial .*no memory"):
        simulate(plan(HOSPITALS, HEART), HEART, HOSPITALS)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "stacked"),
        ({"method": build_method("aqc")}, "serial"),
        ({"model": Model(name="mlp")}, "stacked"),
    ],
)
def test_the_engine_that_fits_is_chosen(changes, chosen):
    local_model = LocalModel(plan(HOSPITALS, HEART, **changes))
    assert choose_engine("auto", local_model).name == chosen


@pytest.mark.parametrize(("cores", "chosen"), [(1, "serial"), (2, "threaded")])
def test_convolutions_use_the_cores(monkeypatch, cores, chosen):
    parts = partition_records(DIGITS, "iid", clients=4)
    made = plan(parts, DIGITS, model=Model(name="cnn"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    engine = choose_engine("auto", LocalModel(made))
    assert engine.name == chosen


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        ("stacked", {"method": build_method("aqc")}, "engine = stacked: aqc trains in its own way"),
        ("stacked", {"make_model": Net}, "engine = stacked: the model cannot be stacked"),
        ("threaded", {"make_model": Net}, "engine = threaded: the model may draw random numbers"),
        ("stakced", {}, "engine = 'stakced'.*stacked"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(engine, changes, message):
    made = plan(HOSPITALS, HEART, **{k: v for k, v in changes.items() if k == "method"})
    with pytest.raises(InputError, match=message):
        simulate(made, HEART, HOSPITALS, engine=engine, make_model=changes.get("make_model"))


def test_threads_leave_torch_as_it_was():
    before = torch.get_num_threads()
    simulate(plan(HOSPITALS, HEART), HEART, HOSPITALS, engine="threaded")
    assert torch.get_num_threads() == before


class Mistaken(Fixed):
    """Charges for one pass, whatever it makes."""

    name = "mistaken"

    def specify_releases(self, request):
        return super().specify_releases(replace(request, passes=1))


@pytest.mark.parametrize("engine", ["auto", "serial", "threaded"])
def test_what_was_not_paid_for_is_refused_in_every_engine(engine, monkeypatch):
    monkeypatch.setitem(METHODS, "mistaken", Mistaken)
    made = plan(HOSPITALS, HEART, method=Mistaken(), training=Training(rounds=3, local_steps=5))
    with pytest.raises(BudgetExceededError, match=r"no client answered .* 12 requests"):
        simulate(made, HEART, HOSPITALS, engine=engine)
    with pytest.raises(InputError, match="is not one clipped sum in each pass"):
        simulate(made, HEART, HOSPITALS, engine="stacked")


def test_a_plan_that_was_tampered_with_is_refused_in_every_engine():
    made = plan(HOSPITALS, HEART, training=Training(rounds=3, local_steps=1))
    more = [client.model_copy(update={"steps": 50}) for client in made.clients]
    tampered = made.model_copy(update={"clients": tuple(more)})
    with pytest.raises(BudgetExceededError, match=r"no client answered .* 12 requests"):
        simulate(tampered, HEART, HOSPITALS)


def test_threads_need_models_of_their_own():
    shared = nn.Sequential(nn.Linear(13, 2))
    with pytest.raises(InputError, match="make_model: gives the same model again"):
        simulate(
            plan(HOSPITALS, HEART), HEART, HOSPITALS, make_model=lambda: shared, engine="threaded"
        )


def test_a_changed_plan_forgets_what_was_computed_from_the_old_one():
    made = plan(HOSPITALS, HEART)
    before = made.run, made.adjacency
    other = made.model_copy(
        update={"privacy": made.privacy.model_copy(update={"adjacency": "replace-one"})}
    )
    assert (other.run, other.adjacency) != before
    assert other.adjacency.value == "replace-one"
    assert other.run != made.run


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("engine", ["stacked", "serial"])
def test_whether_a_client_answers_depends_on_no_record(label, engine):
    """Weights a server may choose, under which the squared norms add up to just below or above
    the largest number: the client answers either way."""
    features = np.zeros((12, 4), np.float32)
    features[:, 0] = 1
    labels = np.zeros(12, np.int64)
    labels[0] = label
    records = Records(features=features, labels=labels, clients=np.zeros(12, np.int64))
    data = replace(HEART, name="edge", train=records, test=records, clients=("a",))
    parts = partition_records(data, "natural")
    made = plan(
        parts,
        data,
        model=Model(name="mlp", settings={"hidden": 4}),
        training=Training(rounds=1, local_steps=1),
    )
    large = float(np.sqrt(3.4028e38 / 32 / 11.5))
    weights = LocalModel(made).state()
    for value in weights.values():
        value.zero_()
        if value.shape == (4,):
            value.fill_(1.0)
        if value.shape == (2, 4):
            value[0], value[1] = -large, large
    result = simulate(made, data, parts, initial=weights, engine=engine)
    assert result.history[0].answered == 1
