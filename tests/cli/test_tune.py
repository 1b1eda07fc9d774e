"""``pacdp tune``, and ``--configuration`` wherever a plan is taken."""

import csv
import json

import pytest

import pacdp.data
from pacdp.cli.inference import apply_features, evaluate_command, predict_command
from pacdp.errors import InputError
from pacdp.experiments import RunResult

from .command import as_json, refused, run, start

SMALL = ("--profile", "smoke", "--seeds", 1, "--sweeps", 1)
LINES = """
name = "lines"
method = "fixed"
[data]
name = "strokes"
options = { records = 300, seed = 7 }
partition = "iid"
clients = 3
[representation]
name = "gradients"
dimension = 16
[training]
rounds = 2
local_steps = 1
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A plan of PAC-DP and one of a rival, with what was said of the first."""
    folder = tmp_path_factory.mktemp("plans")
    said = start("tune", "heart", *SMALL, "--out", folder / "pac-dp.json").stdout
    run("tune", "heart", *SMALL, "--method", "fixed", "--out", folder / "fixed.json")
    return folder, said


def test_it_says_what_was_chosen_and_why(plans):
    folder, said = plans
    for word in (
        *("distance", "rounds", "schedule", "was", "chosen", "gain ± s.e.", "1 fresh seeds"),
        *("ε = 0.1 at δ = 1e-05, zero-out", "synthetic-for-heart", "sha-256", "private-only"),
        f"pacdp run heart --configuration {folder / 'pac-dp.json'} --profile smoke",
    ):
        assert word in said
    assert json.loads((folder / "pac-dp.json").read_text())["trainings"] > 50


def test_as_one_object(tmp_path):
    found = as_json("tune", "heart", *SMALL, "--method", "fedavg", "--out", tmp_path / "t.json")
    assert found["method"] == "fedavg"
    assert found["privacy"]["budgets"] == []
    assert found["file"] == str(tmp_path / "t.json")
    assert found["expected"]["seeds"] == [1]


def test_nothing_is_overwritten(plans):
    path = plans[0] / "fixed.json"
    before = path.read_bytes()
    assert "exists already" in refused("tune", "heart", *SMALL, "--out", path)
    assert path.read_bytes() == before


def test_a_plan_says_whose_choice_it_is(plans):
    text = run("plan", "heart").stdout
    assert "published" in text
    assert "none: the model sees the records" in text
    text = run("plan", "heart", "--configuration", plans[0] / "fixed.json").stdout
    assert "tuned on synthetic-for-heart: " in text
    assert "expected there (ε = 0.1 at δ = 1e-05, zero-out)" in text
    assert "private-only" in text


def test_a_run_keeps_what_was_chosen_and_goes_on(plans, tmp_path):
    path, out = plans[0] / "pac-dp.json", tmp_path / "run"
    arguments = ("run", "heart", "--profile", "smoke", "--configuration", path, "--out", out)
    assert "tuned on synthetic-for-heart" in run(*arguments).stdout
    tuning = RunResult.load(out).plan.tuning
    content = json.loads(path.read_text())
    file_only = ("arithmetic", "changes")
    assert tuning == {key: value for key, value in content.items() if key not in file_only}
    assert RunResult.load(out).plan.rounds == content["chosen"]["rounds"]
    assert f"--configuration {path}" in (out / "report.html").read_text()
    before = json.loads((out / "result.json").read_text())
    (out / "result.json").unlink()
    run(*arguments, "--resume")
    assert json.loads((out / "result.json").read_text())["metrics"] == before["metrics"]
    assert "holds another plan" in refused(
        *("run", "heart", "--profile", "smoke", "--out", out, "--resume")
    )


def test_a_comparison_says_which_plan_each_has(plans, tmp_path):
    ours, theirs = (plans[0] / f"{name}.json" for name in ("pac-dp", "fixed"))
    arguments = (
        *("compare", "heart", "--profile", "smoke", "--seeds", 1),
        *("--methods", "pac-dp,fixed,fedavg", "--configuration", ours, "--configuration", theirs),
    )
    found = as_json(*arguments)
    assert found["plans"] == {"pac-dp": str(ours), "fixed": str(theirs), "fedavg": "published"}
    chosen = {
        name: json.loads(path.read_text())["chosen"]
        for name, path in zip(("pac-dp", "fixed"), (ours, theirs), strict=True)
    }
    for name, point in chosen.items():
        assert found["methods"][name][0]["rounds"] == point["rounds"]
    assert found["methods"]["fedavg"][0]["rounds"] == 3
    page = tmp_path / "page.html"
    assert "published" in run(*arguments, "--report", page).stdout
    assert f"--configuration {theirs}" in page.read_text()


def test_a_run_with_a_representation_answers_to_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PACDP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "lines.toml").write_text(LINES)
    out, answers = tmp_path / "run", tmp_path / "answers.csv"
    run("run", tmp_path / "lines.toml", "--out", out)
    assert "gradients, 16 numbers" in run("plan", tmp_path / "lines.toml").stdout
    records = pacdp.data.load_dataset("strokes", records=300, seed=7)
    # The whole set takes long to draw.
    monkeypatch.setattr(pacdp.data, "load_dataset", lambda name: records)
    evaluate_command(out, "strokes", as_json=True)
    said = json.loads((out / "result.json").read_text())
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(said["accuracy"])
    predict_command(out, "strokes", answers)
    rows = list(csv.DictReader(answers.read_text().splitlines()))
    assert len(rows) == len(records.test)
    right = sum(
        int(row["class"]) == label for row, label in zip(rows, records.test.labels, strict=True)
    )
    assert right / len(rows) == pytest.approx(said["accuracy"])
    # Sixteen directions of other images are sixteen numbers, too.
    plan = RunResult.load(out).plan
    assert plan.provenance["shape"] == "(1, 28, 28)"
    other = plan.model_copy(update={"provenance": {**plan.provenance, "shape": "(1, 32, 32)"}})
    with pytest.raises(InputError, match=r"shape is \(1, 28, 28\), must be \(1, 32, 32\)"):
        apply_features(other, "strokes", records)
    assert "takes images" in refused("evaluate", out, "--data", "heart")


def test_records_of_length_one_are_measured_as_in_the_run(tmp_path):
    out = tmp_path / "run"
    run("run", "heart", "--profile", "smoke", "--set", "representation={}", "--out", out)
    said = json.loads((out / "result.json").read_text())
    found = as_json("evaluate", out, "--data", "heart")
    assert found["accuracy"] == pytest.approx(said["accuracy"])
    assert found["auroc"] == pytest.approx(said["metrics"]["auroc"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "heart", "--method", "fixd"), "did you mean fixed"),
        (("tune", "heart", "--seeds", "0"), "seeds = 0"),
        (("tune", "heart", "--sweeps", "0"), "sweeps = 0"),
        (("tune", "heart", "--out", "nowhere/a.json"), "its folder does not exist"),
        (("tune", "heart", "--set", 'representation={name="network"}'), "must have public data"),
        (("run", "heart", "--set", 'representation={name="gradients"}'), "takes images"),
        (("tune", "heart", "--set", 'representation={name="gradients"}'), "takes images"),
        (("run", "heart", "--set", "representation={dimension=513}"), "less than or equal to 512"),
        (("run", "heart", "--set", "representation={dimension=4}"), "without a dimension"),
        (("run", "heart", "--configuration", "nowhere.json"), "there is no such file"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(refuses, arguments, message):
    assert message in refuses(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "mnist"}, "was made for mnist, must be for heart"),
        ({"method": "fixd"}, "did you mean fixed"),
        ({"changes": {"training": {"rounds": 0}}}, "training.rounds = 0"),
        ({"changes": {"methods": 3}}, "is damaged"),
        ({"changes": {"methods": {"fixed": {"bound": 3}}}}, "methods.fixed.bound"),
        ({"expected": {"mean": 1}}, "expected.metric: is missing"),
        ({"proxy": {}}, "has no name"),
    ],
)
def test_a_damaged_plan_is_refused(plans, refuses, tmp_path_factory, change, message):
    content = json.loads((plans[0] / "fixed.json").read_text())
    path = tmp_path_factory.mktemp("damaged") / "plan.json"
    path.write_text(json.dumps({**content, **change}))
    assert message in refuses("run", "heart", "--configuration", path, "--out", "run")


def test_a_plan_for_something_else_is_refused(plans, refuses):
    fixed = ("--configuration", plans[0] / "fixed.json")
    assert "must be for pac-dp" in refuses("run", "heart", *fixed, "--method", "pac-dp")
    assert "contradicts the configuration" in refuses(
        "run", "heart", *fixed, "--set", "training.rounds=99"
    )
    assert "must be among" in refuses("compare", "heart", *fixed, "--methods", "pac-dp")
    assert "is the second" in refuses("compare", "heart", *fixed, *fixed)
