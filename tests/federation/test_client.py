"""The client alone, against a server that wants more."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from pacdp.clipping import SystemNoise, clip_upload
from pacdp.clipping.numerics import grid_step, quantize_
from pacdp.data import Records, load_dataset, partition_records
from pacdp.errors import BudgetExceededError, InputError, TrainingError
from pacdp.federation import (
    Broadcast,
    Client,
    LocalModel,
    Model,
    Optimiser,
    Plan,
    Privacy,
    Training,
    simulate,
)
from pacdp.federation.client import simulated_noise
from pacdp.methods import Answer, build_method
from pacdp.privacy import Adjacency, Guarantee, MemoryLedger, SQLiteLedger
from pacdp.tasks import Classification
from tests.plans import plan_for, plan_of

DATA = load_dataset("heart")
HOSPITALS = partition_records(DATA, "natural")
RECORDS = HOSPITALS.client_records(DATA)


def plan(**changes):
    parts = {
        "training": Training(rounds=3, local_epochs=2, batch=64),
        "privacy": Privacy(epsilon=1.0),
    }
    return plan_for(DATA, HOSPITALS, **parts | changes)


class Spy:
    """A method of a test's own."""

    def check_state(self, shared_state, client):
        pass


def broadcast(made, number=0):
    return Broadcast(number, LocalModel(made).state())


def test_a_client_answers_with_its_update_and_nothing_else():
    made = plan()
    client = Client(0, made, RECORDS[0])
    reply = client.answer(broadcast(made))
    assert set(vars(reply)) == {"client", "round", "update", "released", "noise_scale"}
    assert reply.noise_scale == 1.0
    assert reply.released == ()
    assert set(reply.update) == {"1.weight", "1.bias"}
    assert client.ledger.count_releases(made.run).total() == 2


def test_it_refuses_after_as_many_answers_as_planned():
    made = plan()
    client = Client(0, made, RECORDS[0])
    for number in (0, 0, 2):  # whatever rounds the server claims
        client.answer(broadcast(made, number))
    with pytest.raises(
        BudgetExceededError, match=r"client cleveland: .* has made 6 releases of 6 planned"
    ):
        client.answer(broadcast(made, 1))
    assert client.ledger.filter.realised.epsilon == pytest.approx(1.0, rel=1e-9)


def test_a_cap_below_the_budget_holds_as_well():
    """Under dp-fedavg a generous client is planned at another's budget: the plan still binds."""
    made = plan(method=build_method("dp-fedavg"), privacy=Privacy(epsilon=(5.0, 0.1, 5.0, 5.0)))
    client = Client(0, made, RECORDS[0])
    for _ in range(3):
        client.answer(broadcast(made))
    with pytest.raises(BudgetExceededError):
        client.answer(broadcast(made))
    assert client.ledger.filter.realised.epsilon < 0.11


@pytest.mark.parametrize("number", [-1, 3, 10**9, 0.5, np.int64(1), True])
def test_rounds_that_do_not_exist_cost_nothing(number):
    made = plan()
    client = Client(0, made, RECORDS[0])
    with pytest.raises(InputError, match="must be a whole number from 0 to 2"):
        client.answer(broadcast(made, number))
    assert client.ledger.count_releases(made.run).total() == 0


def test_models_that_do_not_fit_cost_nothing():
    made = plan()
    client = Client(0, made, RECORDS[0])
    state = LocalModel(made).state()
    wrong = [
        {"1.weight": state["1.weight"]},
        {**state, "more": torch.zeros(1)},
        {**state, "1.bias": torch.zeros(3)},
        {**state, "1.bias": torch.zeros(2, dtype=torch.long)},
    ]
    for model in wrong:
        with pytest.raises(InputError, match="parameter"):
            client.answer(Broadcast(0, model))
    assert client.ledger.count_releases(made.run).total() == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_poisoned_model_gets_noise_of_the_planned_size(value):
    """Gradients that are not finite count zero, so the upload is the planned noise and no less."""
    made = plan(training=Training(rounds=50, local_steps=1))
    client = Client(0, made, RECORDS[0])
    state = {name: torch.full_like(v, value) for name, v in LocalModel(made).state().items()}
    if value == 1e30:
        reply = client.answer(Broadcast(0, {n: v * 0 + value for n, v in state.items()}))
        assert set(reply.update) == set(state)
        return
    probe = Client(0, made, RECORDS[0])
    seen = []
    train = probe.method.train

    def spy(participation):
        total = participation.clipped_sum(torch.arange(200), 1.0)
        seen.append({name: float(v.abs().max()) for name, v in total.values.items()})
        return train(participation)

    probe.method = type("Seen", (Spy,), {"train": staticmethod(spy)})()
    probe.answer(Broadcast(0, state))
    assert seen == [{"1.weight": 0.0, "1.bias": 0.0}]


def test_noise_is_scaled_by_the_plan():
    """Two clients without data in common with any class: what is left is noise, of known size."""
    made = plan(
        training=Training(rounds=200, local_steps=1, optimiser=Optimiser(lr=1.0)),
        privacy=Privacy(epsilon=1.0, adjacency="replace-one"),
    )
    client = Client(0, made, RECORDS[0])
    state = LocalModel(made).state()
    updates = [client.answer(Broadcast(t, state)).update["1.weight"] for t in range(200)]
    spread = float(torch.stack(updates).std(0).mean())
    client_plan = made.clients[0]
    # The model and the batch are the same each time, so that only the noise varies.
    assert spread == pytest.approx(client_plan.noise_multiplier / client_plan.divisor, rel=0.05)


def test_what_was_not_paid_for_is_not_released():
    made = plan(training=Training(rounds=3, local_steps=1))

    class Greedy(Spy):
        """Releases a batch twice."""

        def train(self, context):
            for batch in context.batches():
                for _ in range(2):
                    context.release(context.clipped_sum(batch, 1.0))

    class Mislabelled(Spy):
        """Releases something that no batch of records was summed into."""

        def train(self, context):
            value = clip_upload({"w": torch.ones(3)}, bound=1.0, adjacency=Adjacency.ZERO_OUT)
            return Answer(context.release(value))

    for wrong in (Greedy(), Mislabelled()):
        client = Client(0, made, RECORDS[0])
        client.method = wrong
        with pytest.raises(BudgetExceededError, match="not paid for"):
            client.answer(broadcast(made))


def test_one_record_in_every_batch_is_not_paid_for():
    """As many releases as there are steps, but all of the same records."""
    made = plan(training=Training(rounds=3, local_epochs=1, batch=10))

    class Same(Spy):
        def train(self, context):
            for _ in context.batches():
                context.step(context.release(context.clipped_sum(torch.arange(20), 1.0)))
            return Answer(context.update())

    client = Client(0, made, RECORDS[0])
    client.method = Same()
    with pytest.raises(BudgetExceededError, match="pays for 1 of each record"):
        client.answer(broadcast(made))


def test_nothing_leaves_that_was_not_released():
    made = plan(training=Training(rounds=3, local_steps=1))

    class Clean(Spy):
        """Steps on the sum itself, before there is noise on it."""

        def train(self, context):
            for batch in context.batches():
                context.step(dict(context.clipped_sum(batch, 1.0).values))
            return Answer(context.update())

    class Own(Spy):
        """Sends something of its own making."""

        def train(self, context):
            (batch,) = context.batches()
            return Answer(dict(context.clipped_sum(batch, 1.0).values))

    class Plain(Spy):
        """Trains on a gradient without noise."""

        def train(self, context):
            context.step(context.plain_mean(torch.arange(10)))
            return Answer(context.update())

    for wrong in (Clean(), Own(), Plain()):
        client = Client(0, made, RECORDS[0])
        client.method = wrong
        with pytest.raises(BudgetExceededError, match="sends what was not released"):
            client.answer(broadcast(made))


def test_slips_of_a_method_are_refused():
    made = plan(training=Training(rounds=3, local_steps=2))

    class Twice(Spy):
        """One record many times in a batch."""

        def train(self, context):
            return context.clipped_sum(torch.tensor([199, -1]), 1.0)

    class Late(Spy):
        """Noise only at the end, on gradients of a model that knows every record."""

        def train(self, context):
            batch = next(context.batches())
            context.step(context.plain_mean(batch))
            return context.clipped_sum(batch, 1.0)

    class Lengths(Spy):
        """A bound from the gradients themselves."""

        def train(self, context):
            return context.norms(next(context.batches()))

    class Divided(Spy):
        """A divisor from the records."""

        def train(self, context):
            total = context.clipped_sum(next(context.batches()), 1.0)
            return context.release(total, divisor=17.0)

    class Changed(Spy):
        """A batch that says something else afterwards."""

        def train(self, context):
            for _ in range(3):
                batch = torch.arange(5)
                total = context.clipped_sum(batch, 1.0)
                batch.add_(100)
                context.release(total)

    for wrong in (Twice(), Late(), Lengths(), Divided(), Changed()):
        client = Client(0, made, RECORDS[0])
        client.method = wrong
        with pytest.raises(BudgetExceededError):
            client.answer(broadcast(made))


def test_a_plan_is_private_or_not_but_never_half():
    content = plan().model_dump(mode="json")
    forged = content | {"method": "fedavg", "settings": {}}
    with pytest.raises(ValidationError, match="noise or budget of cleveland do not fit"):
        Plan.model_validate(forged)
    content["clients"][0]["charges"] = []
    with pytest.raises(ValidationError, match="noise or budget of cleveland do not fit"):
        Plan.model_validate(content)


def test_a_client_with_a_ledger_takes_no_part_without_a_guarantee(tmp_path):
    ledger = create_ledger(tmp_path / "a.ledger", plan())
    with pytest.raises(InputError, match="fedavg has no guarantee, and must have no ledger"):
        Client(0, plan(method=build_method("fedavg")), RECORDS[0], ledger=ledger)


def test_another_hospitals_ledger_is_refused(tmp_path):
    ledger = create_ledger(tmp_path / "a.ledger", plan())
    with pytest.raises(InputError, match="its ledger is that of cleveland"):
        Client(1, plan(), RECORDS[1], ledger=ledger)


def test_noise_is_the_systems_own_unless_told():
    made = plan()
    client = Client(0, made, RECORDS[0])
    one, other = (client.answer(broadcast(made)).update["1.bias"] for _ in range(2))
    assert not torch.equal(one, other)


def test_a_broadcast_of_the_models_own_tensors():
    made = plan(training=Training(rounds=3, local_steps=1))
    client = Client(0, made, RECORDS[0])
    own = dict(client.local_model.model.named_parameters())
    update = client.answer(Broadcast(0, own)).update
    assert all(
        float(value.abs().max()) > 0 and not value.requires_grad for value in update.values()
    )


def test_many_at_once_get_no_more_than_planned(tmp_path):
    made = plan(privacy=Privacy(epsilon=1.0))
    generous = create_ledger(tmp_path / "a.ledger", made, epsilon=50.0)
    ledgers = [generous, SQLiteLedger(tmp_path / "a.ledger"), SQLiteLedger(tmp_path / "a.ledger")]
    clients = [Client(0, made, RECORDS[0], ledger=ledger) for ledger in ledgers]

    def ask(client):
        try:
            client.answer(broadcast(made))
        except BudgetExceededError:
            return 0
        return 1

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ask, clients * 4)) == 3
    shared = MemoryLedger(Guarantee(epsilon=50.0, adjacency=Adjacency.ZERO_OUT))
    clients = [Client(0, made, RECORDS[0], ledger=shared) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ask, clients * 4)) == 3
    assert shared.count_releases(made.run).total() == 6


def test_another_plan_on_the_same_ledger_is_another_run():
    ledger = MemoryLedger(Guarantee(epsilon=10.0, adjacency=Adjacency.ZERO_OUT))
    for made in (plan(), plan(training=Training(rounds=5, local_steps=1)), plan(again="second")):
        client = Client(0, made, RECORDS[0], ledger=ledger)
        for number in range(made.rounds):
            client.answer(broadcast(made, number))
    assert ledger.filter.spent.total() == 6 + 5 + 6


def test_dropout_does_not_let_one_record_move_the_others():
    """A record that overflows must not change what is drawn for everybody else."""
    made = plan_of(
        sizes={"a": 64},
        shape=(3, 8, 8),
        task=Classification(3),
        method=build_method("fixed"),
        model=Model(name="resnet18"),
        training=Training(rounds=3, local_steps=1),
        privacy=Privacy(epsilon=1.0),
    )
    torch.manual_seed(0)
    images = torch.randn(64, 3, 8, 8).numpy()
    labels = np.arange(64) % 3
    local_model = LocalModel(made)
    state = local_model.state()
    sums = []
    for spoiled in (False, True):
        features = images.copy()
        if spoiled:
            features[5] = 3e38
        client = Client(0, made, Records(features=features, labels=labels), local_model=local_model)

        class Watch(Spy):
            def train(self, context):
                (batch,) = context.batches()
                sums.append(context.clipped_sum(batch, 1.0))
                return Answer(context.update())

        client.method = Watch()
        client.answer(Broadcast(0, state))
    first, second = sums
    step = grid_step(first.sensitivity, sum(v.numel() for v in first.values.values()))
    moved = [quantize_(first.values[n], step) - quantize_(second.values[n], step) for n in state]
    length = step * math.sqrt(sum(float(value.square().sum()) for value in moved))
    assert 0 < length <= first.sensitivity


def test_a_method_without_a_guarantee_cannot_release():
    made = plan(method=build_method("fedavg"))
    client = Client(0, made, RECORDS[0])
    assert client.ledger is None
    assert set(client.answer(broadcast(made)).update) == {"1.weight", "1.bias"}
    client.method = build_method("fixed")
    with pytest.raises(BudgetExceededError, match="has no budget"):
        client.answer(broadcast(made))


def create_ledger(path, made, number=0, **changes):
    budget = made.budget(number)
    terms = {"epsilon": budget.epsilon, "delta": budget.delta, "adjacency": budget.adjacency}
    return SQLiteLedger.create(path, client="cleveland", budget=Guarantee(**terms | changes))


def test_a_ledger_in_a_file_holds_over_restarts(tmp_path):
    made = plan()
    made.save(tmp_path / "plan.json")
    create_ledger(tmp_path / "a.ledger", made)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from pacdp.clipping import SystemNoise\n"
        "from pacdp.data import load_dataset, partition_records\n"
        "from pacdp.errors import BudgetExceededError\n"
        "from pacdp.federation import Broadcast, Client, Plan, LocalModel\n"
        "from pacdp.privacy import SQLiteLedger\n"
        "folder = Path(sys.argv[1])\n"
        "plan, data = Plan.load(folder / 'plan.json'), load_dataset('heart')\n"
        "for _ in range(2):\n"
        "    client = Client(0, plan, partition_records(data, 'natural').client_records(data)[0],\n"
        "        ledger=SQLiteLedger(folder / 'a.ledger'), noise=lambda number: SystemNoise())\n"
        "    try:\n"
        "        client.answer(Broadcast(0, LocalModel(plan).state()))\n"
        "        print('answered')\n"
        "    except BudgetExceededError:\n"
        "        print('refused')\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    # Three releases are planned: the second process has to know of the first one's two.
    assert said == [["answered", "answered"], ["answered", "refused"]]
    state = SQLiteLedger(tmp_path / "a.ledger").filter
    assert state.realised.epsilon == pytest.approx(1.0, rel=1e-9)


def test_the_debit_is_written_before_anything_is_computed(tmp_path):
    made = plan()
    ledger = create_ledger(tmp_path / "a.ledger", made)
    client = Client(0, made, RECORDS[0], ledger=ledger)
    seen = []

    class Late(Spy):
        def train(self, context):
            seen.append(SQLiteLedger(tmp_path / "a.ledger").count_releases(made.run).total())
            raise RuntimeError("killed here")

    client.method = Late()
    with pytest.raises(TrainingError, match="client cleveland, round 1, step 1: RuntimeError: kil"):
        client.answer(broadcast(made))
    assert seen == [2]
    assert SQLiteLedger(tmp_path / "a.ledger").count_releases(made.run).total() == 2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"delta": 1e-6}, "delta"),
        ({"adjacency": Adjacency.REPLACE_ONE}, "adjacency"),
        ({"unit": "x"}, "unit"),
    ],
)
def test_a_ledger_on_other_terms_is_refused(tmp_path, changes, name):
    made = plan()
    ledger = create_ledger(tmp_path / "a.ledger", made, **changes)
    with pytest.raises(InputError, match=f"its ledger has {name}"):
        Client(0, made, RECORDS[0], ledger=ledger)


def test_a_poorer_ledger_refuses_before_anything_leaves():
    made = plan()
    ledger = MemoryLedger(Guarantee(epsilon=0.1, adjacency=Adjacency.ZERO_OUT))
    client = Client(0, made, RECORDS[0], ledger=ledger)
    with pytest.raises(BudgetExceededError, match="would reach"):
        client.answer(broadcast(made))


def test_records_other_than_planned_are_refused():
    with pytest.raises(InputError, match="has 173 records, but is planned with 200"):
        Client(0, plan(), RECORDS[1])


def test_each_unit_is_in_one_batch_of_each_pass():
    units = np.arange(200) // 3
    mine = Records(features=RECORDS[0].features, labels=RECORDS[0].labels, units=units)
    made = plan(
        sizes={"a": 200},
        units={"a": 67},
        unit="patient",
        training=Training(rounds=2, local_epochs=2, batch=10),
    )
    client = Client(0, made, mine)
    batches = []

    class Watch(Spy):
        def train(self, context):
            batches.extend(context.batches())
            return Answer(context.update())

    client.method = Watch()
    client.answer(broadcast(made))
    assert len(batches) == 14
    for start in (0, 7):
        held = [set(units[batch.numpy()]) for batch in batches[start : start + 7]]
        assert sum(map(len, held)) == len(set().union(*held)) == 67
    assert client.ledger.filter.budget.unit == "patient"
    with pytest.raises(InputError, match="have no units"):
        Client(0, made, Records(features=mine.features, labels=mine.labels))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_optimisers_start_anew_each_time(name):
    made = plan(
        training=Training(rounds=3, local_steps=3, optimiser=Optimiser(name=name, lr=0.1)),
        privacy=Privacy(epsilon=100.0),
    )
    client = Client(0, made, RECORDS[0])
    client.noise = simulated_noise(0, 0)
    one = client.answer(broadcast(made)).update
    same = client.answer(broadcast(made)).update
    assert all(torch.equal(one[key], same[key]) for key in one)


@pytest.mark.parametrize("later", [False, True])
def test_a_durable_ledger_refuses_seeded_noise(tmp_path, later):
    """Two runs with one seed would give the gradient itself, and be debited as private."""
    made = plan()
    ledger = create_ledger(tmp_path / "a.ledger", made)
    head = ledger.head

    def answer():
        client = Client(
            *(0, made, RECORDS[0]), ledger=ledger, noise=None if later else simulated_noise(0, 0)
        )
        client.noise = simulated_noise(0, 0)
        client.answer(broadcast(made))

    with pytest.raises(InputError, match="ledger is durable, so its noise must be SystemNoise"):
        answer()
    assert SQLiteLedger(tmp_path / "a.ledger").head == head


def test_a_simulation_on_durable_ledgers_has_the_systems_noise(tmp_path):
    made = plan()
    models = []
    for run in range(2):
        ledgers = [
            SQLiteLedger.create(
                tmp_path / f"{run}-{n}.ledger", client=client.name, budget=made.budget(n)
            )
            for n, client in enumerate(made.clients)
        ]
        models.append(simulate(made, DATA, HOSPITALS, ledgers=ledgers).model)
    assert not torch.equal(models[0]["1.weight"], models[1]["1.weight"])


def test_system_noise_differs_each_time():
    made = plan()
    updates = [
        Client(0, made, RECORDS[0], noise=lambda number: SystemNoise())
        .answer(broadcast(made))
        .update["1.bias"]
        for _ in range(2)
    ]
    assert not torch.equal(*updates)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.full(200, 7)}, "label must be a whole number from 0 to 1"),
        ({"labels": np.full(200, 0.25)}, "label must be a whole number from 0 to 1"),
        ({"features": np.zeros((200, 4), np.float32)}, r"have shape \(4,\), but the plan's"),
    ],
)
def test_records_that_would_break_a_training_are_refused_before_it_is_paid_for(change, said):
    """A label that only one record has must not show as a refusal in the middle of a round."""
    mine = RECORDS[0]
    records = Records(**{"features": mine.features, "labels": mine.labels} | change)
    with pytest.raises(InputError, match=said) as raised:
        Client(0, plan(), records)
    assert "7" not in str(raised.value)
    assert "0.25" not in str(raised.value)
