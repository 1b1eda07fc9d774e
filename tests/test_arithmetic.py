"""Files carry the arithmetic that they were made under, and those of another are refused.

What 0.1.0 itself has written is refused in ``tests/cli/test_older_files.py``.
"""

import json

import pytest
import torch
from pydantic import ValidationError

from pacdp.arithmetic import ARITHMETIC
from pacdp.curve import Curve
from pacdp.errors import DataError
from pacdp.experiments import RunResult, prepare_run, read_experiment
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.offline import make_proxy_task
from pacdp.federation import Checkpoint, Plan
from pacdp.federation.checkpoint import CheckpointState
from pacdp.methods import build_method
from pacdp.offline.grid import Cell, ScoreStore
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.tuning import TunedConfiguration
from pacdp.tuning.tuned_configuration import ExpectedScore

HEART = read_experiment("heart", profile="smoke")
PREPARED = prepare_run(HEART, method=HEART.build_method("fixed"))
POWER = {"family": "power", "coefficients": [0.5, 0.25]}
MISSING = object()
OTHERS = [
    (MISSING, "an earlier"),
    (ARITHMETIC - 1, "an earlier"),
    (ARITHMETIC + 1, "a later"),
    ("new", "another"),
    (None, "another"),
]


def curve_file(path):
    Curve(**POWER, evidence={"seeds": [0]}).save(path)
    return Curve.load


def plan_file(path):
    PREPARED.plan.save(path)
    return Plan.load


def tuned_file(path):
    TunedConfiguration(
        experiment="heart",
        method="fixed",
        track="private-only",
        changes={"training": {"rounds": 5}},
        chosen={},
        why=(),
        expected=ExpectedScore(metric="accuracy", mean=0.9, deviation=0.0, seeds=(1,)),
        trainings=1,
        proxy=dict.fromkeys(("name", "made_by", "source", "sha256"), "a"),
        version="0",
    ).save(path)
    return TunedConfiguration.load


def scores_file(path):
    proxy_task = make_proxy_task(HEART)
    ScoreStore(path, proxy_task.digest).add(Cell(0.1, 1.0, 0), 0.5)
    return lambda path: ScoreStore.open(path, proxy_task)


def result_file(path):
    RunResult.of(PREPARED, simulate_run(PREPARED)).save_file(path)
    return RunResult.load_file


def stamp(content, value):
    """The same content with another arithmetic, or with none; that of a result is in its plan."""
    place = content.get("plan", content)
    assert place.pop("arithmetic") == ARITHMETIC
    if value is not MISSING:
        place["arithmetic"] = value
    return content


@pytest.mark.parametrize("make", [curve_file, plan_file, tuned_file, scores_file, result_file])
def test_files_of_other_versions_are_refused(make, tmp_path):
    path = tmp_path / "file"
    load = make(path)
    load(path)
    # Scores are lines, of which the first says what they were made under.
    text = path.read_text()
    first, rest = (text, "") if make is not scores_file else text.split("\n", 1)
    for value, which in OTHERS:
        path.write_text(json.dumps(stamp(json.loads(first), value)) + "\n" + rest)
        with pytest.raises(DataError, match=rf"file: was made by {which} version of pacdp, .*; "):
            load(path)
    path.write_text(text)
    load(path)


def test_checkpoints_of_other_versions_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoint = Checkpoint(path, run="a")
    checkpoint.save(CheckpointState(round=1, server={}, made={}, refused={}, failed={}))
    content = torch.load(path)
    for value, which in OTHERS:
        torch.save(stamp(dict(content), value), path)
        with pytest.raises(DataError, match=rf"was made by {which} version .* new --out folder"):
            checkpoint.load()
    torch.save(content, path)
    assert checkpoint.load().round == 1


def test_folders_of_studies_from_other_versions_are_refused(tmp_path):
    store = tmp_path / "store"
    ArtifactStore(store, profile="smoke")
    ArtifactStore(store, profile="smoke", resume=True)
    content = json.loads((store / "profile").read_text())
    for value, which in OTHERS:
        (store / "profile").write_text(json.dumps(stamp(dict(content), value)))
        with pytest.raises(DataError, match=rf"--out .*: was made by {which} version .* a new"):
            ArtifactStore(store, profile="smoke", resume=True)


def test_curves_written_by_hand_need_no_version(tmp_path):
    assert build_method("pac-dp", {"curve": POWER}).curve(1.0) == 0.5
    # Nor does the file of one: nothing about it depends on how a release is computed.
    path = tmp_path / "curve.json"
    Curve(**POWER).save(path)
    assert "arithmetic" not in json.loads(path.read_text())
    assert build_method("pac-dp", {"curve": path}).curve(1.0) == 0.5


def test_the_checksum_of_a_curve_covers_the_version(tmp_path, monkeypatch):
    path = tmp_path / "curve.json"
    curve_file(path)
    monkeypatch.setattr("pacdp.arithmetic.ARITHMETIC", ARITHMETIC + 1)
    content = json.loads(path.read_text()) | {"arithmetic": ARITHMETIC + 1}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged"):
        Curve.load(path)


def test_a_plan_of_another_version_is_another_run(monkeypatch):
    plan = PREPARED.plan
    monkeypatch.setattr("pacdp.federation.plan.ARITHMETIC", ARITHMETIC + 1)
    other = prepare_run(HEART, method=HEART.build_method("fixed")).plan
    assert other.run != plan.run
    assert other.model_copy(update={"arithmetic": ARITHMETIC}).run == plan.run


@pytest.mark.parametrize(("value", "said"), [(MISSING, "Field required"), (1, "another version")])
def test_a_plan_that_came_over_the_wire_must_say_its_version(value, said):
    content = stamp(json.loads(PREPARED.plan.model_dump_json()), value)
    with pytest.raises(ValidationError, match=said):
        Plan.model_validate(content)
