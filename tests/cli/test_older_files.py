"""Files that pacdp 0.1.0 wrote are refused in one line that says what to do.

``tests/fixtures/0.1.0`` holds real ones: ``fit``, ``plan``, ``tune`` and ``run`` for ``heart`` with
the profile ``smoke``.
"""

import json
import shutil
from pathlib import Path

import pytest

from pacdp.errors import DataError
from pacdp.federation import Checkpoint, Plan

from .command import as_json, run

OLD = Path(__file__).parents[1] / "fixtures" / "0.1.0"
CURVE, TUNED = OLD / "curve.json", OLD / "tuned.json"
SMALL = ("heart", "--profile", "smoke")
FIT, TUNE = (f"pacdp {name} EXPERIMENT --out FILE makes a new one" for name in ("fit", "tune"))
RUN = "train again with pacdp run and a new --out folder"


@pytest.fixture
def old(tmp_path_factory):
    """A copy: what goes on with a file may write to it."""
    return shutil.copytree(OLD, tmp_path_factory.mktemp("old") / "files")


def is_told(said, file, anew):
    version = "was made by an earlier version of pacdp, under which a seed gives other numbers"
    assert said == f"pacdp: {file}: {version}; {anew}\n"


@pytest.mark.parametrize(
    ("arguments", "file", "anew"),
    [
        (("curve", "show", CURVE), CURVE, FIT),
        (("curve", "eval", CURVE, "--epsilon", 0.1), CURVE, FIT),
        (("plan", *SMALL, "--set", f"methods.pac-dp.curve={CURVE}"), CURVE, FIT),
        (("run", *SMALL, "--set", f"methods.pac-dp.curve={CURVE}"), CURVE, FIT),
        (("plan", *SMALL, "--configuration", TUNED), TUNED, TUNE),
        (("run", *SMALL, "--configuration", TUNED), TUNED, TUNE),
        (("compare", *SMALL, "--methods", "pac-dp", "--configuration", TUNED), TUNED, TUNE),
        (("report", OLD / "run", "--out", "a.html"), OLD / "run" / "plan.json", RUN),
    ],
)
def test_curves_plans_and_runs(refuses, arguments, file, anew):
    is_told(refuses(*arguments), file, anew)


def test_a_stopped_run(refuses, old):
    before = {path.name: path.read_bytes() for path in (old / "run").iterdir()}
    is_told(refuses("run", *SMALL, "--out", old / "run", "--resume"), old / "run/plan.json", RUN)
    for name, content in before.items():
        assert (old / "run" / name).read_bytes() == content


def test_a_run_that_was_stopped_after_it_had_fitted_a_curve(refuses, old, tmp_path_factory):
    experiment = tmp_path_factory.mktemp("mine") / "mine.toml"
    run("init", experiment, "--data", "heart")
    text = experiment.read_text()
    start, end = text.index("[methods.pac-dp]"), text.index("[methods.fixed]")
    experiment.write_text(text[:start] + text[end:])
    shutil.copy(old / "curve.json", old / "run")
    said = refuses("run", experiment, "--profile", "smoke", "--out", old / "run", "--resume")
    is_told(said, old / "run/curve.json", RUN)


def test_a_stopped_fit(refuses, old):
    scores = old / "stopped.json.scores.jsonl"
    said = refuses("fit", *SMALL, "--out", old / "stopped.json", "--resume")
    is_told(said, scores, "remove it and run pacdp fit again")


def test_a_folder_of_studies(refuses, old):
    shelf = old / "shelf"
    shelf.mkdir()
    (shelf / "profile").write_text("smoke\n")
    said = refuses("reproduce", "heart", "--profile", "smoke", "--out", shelf, "--resume")
    is_told(said, f"--out {shelf}", "pacdp reproduce needs a new --out folder")
    assert [path.name for path in shelf.iterdir()] == ["profile"]


def test_a_model_that_is_trained_can_still_be_used(old, tmp_path):
    # Training it again would cost the clients' budgets.
    noted = json.loads((old / "run/result.json").read_text())
    found = as_json("evaluate", old / "run", "--data", "heart")
    assert found["accuracy"] == pytest.approx(noted["accuracy"])
    assert (
        "predictions"
        in run("predict", old / "run", "--data", "heart", "--out", tmp_path / "a.csv").stdout
    )


def test_from_python(old):
    anew = "pacdp plan EXPERIMENT --out FILE makes a new one"
    with pytest.raises(DataError, match=f"plan.json: was made by an earlier version.*; {anew}$"):
        Plan.load(old / "plan.json")
    with pytest.raises(DataError, match=f"checkpoint.pt: was made by an earlier version.*; {RUN}$"):
        Checkpoint(old / "run/checkpoint.pt", run="any").load()
