"""``pacdp plan|run|compare|evaluate|predict|init`` as a user types them."""

import csv
import json

import pytest

from pacdp.errors import DataError
from pacdp.experiments import RunResult
from pacdp.privacy import account, calibrate

from .command import as_json, refused, run, start

CLIENT = {
    *("id", "epsilon_budget", "epsilon_planned", "epsilon_realised", "delta", "adjacency"),
    *("releases", "noise_multiplier", "mu_realised", "sampling_rate"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run."""
    path = tmp_path_factory.mktemp("runs") / "heart"
    start("run", "heart", "--profile", "smoke", "--seed", 3, "--out", path)
    return path


def test_plan_shows_what_it_costs_and_trains_nothing():
    text = start("plan", "heart-personalised").stdout
    for word in ("bytes per round", "local steps", "zero-out", "cleveland", "SNR", "inverse-noise"):
        assert word in text
    found = as_json("plan", "heart", "--set", "training.rounds=13")
    multiplier = found["plan"]["clients"][0]["charges"][0]["noise_multiplier"]
    assert multiplier == pytest.approx(110.86914, abs=1e-5)  # a check value of the accounting
    assert found["cost"]["parameters"] == 28
    assert found["cost"]["bytes_per_round"] == 2 * 4 * 28 * 4


def test_run_as_one_object():
    found = as_json("run", "heart-personalised", "--profile", "smoke", "--seed", 1)
    assert (found["method"], found["seed"], found["profile"]) == ("pac-dp", 1, "smoke")
    assert found["rounds"] == 3
    assert 0 <= found["accuracy"] <= 1
    assert sorted(c["epsilon_budget"] for c in found["clients"]) == [0.01, 0.01, 0.05, 0.5]
    for client in found["clients"]:
        assert set(client) >= CLIENT
        assert client["epsilon_realised"] == pytest.approx(client["epsilon_budget"], rel=1e-9)
        assert client["epsilon_realised"] <= client["epsilon_budget"]
        assert (client["releases"], client["sampling_rate"]) == (3, 1.0)
        plan = calibrate(epsilon=client["epsilon_budget"], releases=3).release()
        assert client["noise_multiplier"] == pytest.approx(plan.noise_multiplier)
        assert client["epsilon_realised"] == pytest.approx(account(plan).epsilon)


def test_without_a_guarantee_there_is_no_epsilon():
    found = as_json("run", "heart", "--profile", "smoke", "--method", "fedavg")
    for client in found["clients"]:
        for name in ("budget", "planned", "realised"):
            assert client[f"epsilon_{name}"] is None
        assert client["mu_realised"] is None
    assert "spent ε" in run("run", "heart", "--profile", "smoke", "--method", "fedavg").stdout


def test_two_kinds_of_noise_are_both_said():
    arguments = ("run", "heart", "--profile", "smoke", "--method", "cgm-median:share=0.2")
    noises = as_json(*arguments)["clients"][0]["noise_multiplier"]
    assert len(noises) == 2
    text = run(*arguments).stdout
    assert all(f"{noise:.3g}" in text for noise in noises)


def test_the_run_folder_holds_plain_files(folder):
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        *("plan.json", "experiment.json", "partition.json", "metrics.jsonl", "result.json"),
        *("model.safetensors", "environment.json", "checkpoint.pt", "report.html"),
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert {"accuracy", "loss", "epsilon_spent", "answered"} <= set(rows[0])
    assert "exists already" in refused("run", "heart", "--profile", "smoke", "--out", folder)


def test_a_trained_model_loads_in_three_lines(folder):
    import torch

    loaded = RunResult.load(folder, for_inference=True)
    model = loaded.model()
    assert model(torch.zeros(2, 13)).shape == (2, 2)
    assert loaded.method == "pac-dp"
    assert loaded.to_json() == json.loads((folder / "result.json").read_text())
    assert len(loaded.history) == loaded.rounds
    with pytest.raises(DataError, match="read without the model's weights"):
        RunResult.load(folder).model()


def test_events_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    start("run", "heart", "--profile", "smoke", "--tensorboard", tmp_path / "events")
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3]


def test_a_hot_start_is_said_and_measured():
    found = as_json(
        *("run", "heart", "--profile", "smoke", "--set", "hot_start={epochs=5, lr=0.01}")
    )
    assert 0 < found["before_private_data"]["accuracy"] <= 1
    assert "warm start" in run("plan", "heart", "--set", "hot_start={epochs=5}").stdout


def test_evaluate_gives_what_the_run_said(folder):
    said = json.loads((folder / "result.json").read_text())
    found = as_json("evaluate", folder, "--data", "heart", call=start)
    assert found["accuracy"] == pytest.approx(said["accuracy"])
    assert found["auroc"] == pytest.approx(said["metrics"]["auroc"])
    assert "the model takes (13,)" in refused("evaluate", folder, "--data", "digits")


def test_predict_writes_a_table(folder, tmp_path):
    out = tmp_path / "p.csv"
    start("predict", folder, "--data", "heart", "--out", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 250
    assert set(rows[0]) == {"record", "class", "probability_0", "probability_1"}
    for row in rows[:5]:
        larger = max("01", key=lambda number: float(row[f"probability_{number}"]))
        assert row["class"] == larger


def test_compare_is_one_table():
    text = start(
        *("compare", "heart", "--profile", "smoke", "--seeds", 2),
        *("--methods", "pac-dp,fixed:clipping_bound=0.5,fedavg"),
    ).stdout
    for word in ("pac-dp", "fixed:clipping_bound=0.5", "fedavg", "±", "chance", "zero-out"):
        assert word in text
    found = as_json("compare", "heart", "--profile", "smoke", "--seeds", 2, "--methods", "fixed")
    assert [one["seed"] for one in found["methods"]["fixed"]] == [0, 1]


def test_init_writes_an_experiment_that_runs(tmp_path):
    path = tmp_path / "mine.toml"
    start("init", path)
    schema = json.loads((tmp_path / "pacdp.schema.json").read_text())
    assert {"data", "training", "privacy", "methods"} <= set(schema["properties"])
    assert as_json("run", path, "--profile", "smoke")["experiment"] == "mine"
    assert "exists already" in refused("init", path)


def test_own_data_and_patients(tmp_path):
    data = tmp_path / "clinics"
    data.mkdir()
    for name in ("north", "south"):
        rows = "".join(f"p{n // 3},{n % 7},{n % 5},{n // 3 % 2}\n" for n in range(90))
        (data / f"{name}.csv").write_text(f"unit,age,rate,label\n{rows}")
    path = tmp_path / "mine.toml"
    run("init", path, "--data", data)
    found = as_json(
        *("run", path, "--profile", "smoke", "--set", 'data.options={unit="patient"}'),
        *("--set", "training.batch=10"),
    )
    assert {client["unit"] for client in found["clients"]} == {"patient"}
    text = run("run", path, "--profile", "smoke", "--set", 'data.options={unit="patient"}').stdout
    assert "zero-out of a patient" in text


def test_a_model_that_diverges_is_said_to(tmp_path):
    arguments = (
        *("run", "heart", "--method", "fedavg", "--set", "model.name=mlp"),
        *("--set", "training.optimiser.lr=1e38", "--set", "training.rounds=4"),
    )
    assert "diverged" in run(*arguments).stdout
    found = as_json(*arguments, "--out", tmp_path / "run")
    assert "loss" not in found["metrics"]
    assert (tmp_path / "run" / "result.json").exists()


def test_a_slip_in_an_unused_size_is_found(tmp_path):
    path = tmp_path / "mine.toml"
    run("init", path)
    path.write_text(path.read_text().replace("training.rounds = 2", "training.round = 2"))
    assert "profile smoke: training.round: is no setting" in refused("plan", path)


def test_budgets_per_release_are_labelled():
    found = as_json("run", "heart", "--profile", "smoke", "--set", "privacy.scope=per-release")
    client = found["clients"][0]
    assert client["label"] == "per-release"
    assert client["epsilon_realised"] > 1.5 * client["epsilon_budget"]


def test_a_budget_that_is_spent_late():
    late = ("--profile", "smoke", "--set", 'privacy.spending={policy="late",growth=9.0}')
    text = run("plan", "heart", *late).stdout
    assert "late: noise is σ/C times 2.08 at first and 0.694 at last" in text
    found = as_json("run", "heart", *late, "--engine", "serial")
    for client in found["clients"]:
        assert client["epsilon_realised"] == pytest.approx(client["epsilon_budget"], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "hart"), "did you mean heart"),
        (("run", "heart", "--profile", "huge"), "has smoke, desk, full"),
        (("run", "heart", "--method", "pacdp"), "did you mean pac-dp"),
        (("run", "heart", "--method", "fixed:C=3"), "methods.fixed.C: is no setting"),
        (("run", "heart", "--method", "fixed:clipping_bound"), "must be KEY=VALUE"),
        (("run", "heart", "--set", "training.round=3"), "did you mean rounds"),
        (("run", "heart", "--set", "trainin.rounds=3"), "did you mean training"),
        (("run", "heart", "--set", "training.rounds=0"), "training.rounds = 0"),
        (("run", "heart", "--set", "training.rounds"), "must be KEY=VALUE"),
        (("run", "heart", "--set", "privacy.epsilon=-1"), "epsilon"),
        (("run", "heart", "--set", "privacy.epsilon=[0.1]"), "one for each of 4"),
        (("run", "heart", "--set", "privacy.delta=2"), "privacy.delta"),
        (("run", "heart", "--set", "model.name=cnnn"), "did you mean cnn"),
        (("run", "heart", "--set", "model.name=cnn"), "takes images"),
        (("run", "heart", "--set", "data.name=hert"), "did you mean heart"),
        (("run", "heart", "--set", "methods.pac-dp.curve=nowhere.json"), "nowhere.json"),
        (("run", "heart", "--seed", "-1"), "seed = -1"),
        (("run", "heart", "--seed", str(2**63)), "must be a whole number from 0 to 2^63 - 1"),
        (("run", "heart", "--set", f"model.seed={2**70}"), "model.seed"),
        (("run", "heart", "--method", ""), "must be NAME"),
        (("run", "heart", "--set", "methods=3"), "methods = 3"),
        (("run", "heart", "--set", "methods.fixd.clipping_bound=1"), "did you mean fixed"),
        (("run", "heart", "--set", "privacy.epsilon=true"), "privacy.epsilon"),
        (("run", "heart", "--set", 'privacy.epsilon="0.5"'), "privacy.epsilon"),
        (("run", "heart", "--set", "privacy.epsilon={level=[1.0],shares=[1.0]}"), "levels"),
        (("run", "heart", "--set", "privacy.epsilon={levels=[1.0],shares=[nan]}"), "shares"),
        (("run", "heart", "--set", "data.nme=3"), "did you mean name"),
        (("run", "heart", "--set", "data.options.name=x"), "is no option"),
        (("run", "heart", "--set", "model.settings.biass=1"), "did you mean bias"),
        (
            ("run", "heart", "--set", "methods.pac-dp.curve.familly=power"),
            "did you mean family",
        ),
        (("run", "heart", "--device", "meta"), "must be cpu, cuda or mps"),
        (("run", "heart", "--device", "abacus"), "--device abacus"),
        (("run", "heart", "--resume"), "needs --out"),
        (
            ("run", "heart", "--engine", "stacke"),
            "must be one of auto, stacked, threaded, serial",
        ),
        (
            ("run", "heart", "--method", "aqc", "--engine", "stacked", "--out", "x"),
            "aqc trains in its own way",
        ),
        (("run", "heart", "--set", 'privacy.spending.policy="early"'), "privacy.spending.policy"),
        (("run", "heart", "--set", "privacy.spending.growth=2"), "growth: is for the policy late"),
        (("compare", "heart", "--seeds", "0"), "seeds = 0"),
        (("compare", "heart", "--methods", "fixed,fixed"), "must be different"),
        (("evaluate", "nowhere", "--data", "heart"), "has no plan.json"),
        (("predict", "nowhere", "--data", "heart", "--out", "p.csv"), "has no plan.json"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(refuses, arguments, message):
    assert message in refuses(*arguments)
