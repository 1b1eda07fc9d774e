"""Budgets of single records, from a column or a function, through the command line."""

import json
from functools import partial

import numpy as np
import pytest

from .command import run

LEVELS = (0.1, 1.0, 5.0)
EXPERIMENT = """
name = "trial"
method = "fixed"
[data]
name = "hospitals"
options = { unit = "patient", classes = 2 }
[training]
rounds = 2
local_epochs = 1
batch = 16
[privacy]
epsilon = 3.0
records = { levels = [0.1, 1, 5] }
"""
FUNCTIONS = """
import numpy as np


def by_age(records):
    return np.where(records.features[:, 0] > 0, 1.0, 0.1)


def fails(records):
    raise ValueError("Xanthippe")


def too_few(records):
    return by_age(records)[:-1]


def negative(records):
    return -by_age(records)


number = 3
"""


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "hospitals").mkdir()
    for name, patients in (("north", 60), ("south", 45), ("west", 30)):
        lines = ["unit,age,budget,rate,label"]
        for patient in range(patients):
            ill, epsilon = patient % 2, LEVELS[patient // 2 % 3]
            for _ in range(random.integers(1, 4)):
                age, rate = random.normal(50 + 12 * ill, 7), random.normal(155 - 25 * ill, 12)
                lines.append(f"p{patient},{age:.2f},{epsilon:g},{rate:.2f},{ill}")
        (tmp_path / "hospitals" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "hospitals" / "ranges.toml").write_text("age = [30, 74]\nrate = [60, 220]\n")
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    (tmp_path / "my_budgets.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.fixture
def refused(folder, refuses_in):
    """Calls the command in the folder; it must say no in one line."""
    return partial(refuses_in, folder)


def spends_within_levels(path):
    for client in json.loads(path.read_text())["clients"]:
        assert sum(level["units"] for level in client["levels"]) > 0
        for level in client["levels"]:
            assert level["epsilon_budget"] == min(level["epsilon"], client["epsilon_budget"])
            assert 0 < level["epsilon_spent"] <= level["epsilon_budget"]


def test_check_counts_the_budgets(folder):
    shown = run("data", "check", "hospitals", "--unit", "patient", cwd=folder).stdout
    assert "of each patient, for training: ε = 0.1 (" in shown
    values = json.loads(run("data", "check", "hospitals", "--json", cwd=folder).stdout)
    assert [level["epsilon"] for level in values["budgets"]] == list(LEVELS)
    assert sum(level["units"] for level in values["budgets"]) == values["units"]
    assert values["shape"] == [2]


def test_a_column_of_budgets_is_planned_and_kept(folder):
    plan = run("plan", "trial.toml", "--out", "plan.json", cwd=folder)
    assert plan.stderr == ""
    run("run", "trial.toml", "--method", "fixed", "--out", "first", cwd=folder)
    result = folder / "first" / "result.json"
    content = json.loads(result.read_text())
    assert len(content["clients"]) == 3
    # The test records are set aside from the same files, so they have budgets, too.
    assert list(content["accuracy_by_level"]) == [f"{level:g}" for level in LEVELS]
    assert all(0 <= accuracy <= 1 for accuracy in content["accuracy_by_level"].values())
    spends_within_levels(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("privacy.records={levels = [0.1, 1]}", "not among the levels, must be one of 0.1, 1"),
        (
            "privacy.records={levels = [0.1, 1, 5], shares = [0.5, 0.3, 0.2]}",
            "must list their levels, without shares",
        ),
    ],
)
def test_levels_must_be_those_of_the_records(folder, refused, change, message):
    for command in (["plan"], ["run", "--out", "never"]):
        assert message in refused(*command, "trial.toml", "--set", change)
    assert not (folder / "never").exists()


def test_budgets_are_not_ignored_where_no_levels_are_declared(folder, refused):
    text = EXPERIMENT.replace("records = { levels = [0.1, 1, 5] }\n", "")
    (folder / "trial.toml").write_text(text)
    assert "records have budgets of their own" in refused("plan", "trial.toml")
    run("plan", "trial.toml", "--method", "fedavg", cwd=folder)


def test_levels_need_budgets(refused):
    change = ("--set", "privacy.records={levels = [0.1, 1]}")
    for command in (("plan", "--method", "fixed"), ("fit", "--out", "curve.json")):
        error = refused(*command, "heart", "--profile", "smoke", *change)
        assert "the records have no budgets of their own" in error


HEART = ("heart", "--profile", "smoke", "--method", "fixed")
LEVELS_OF_HEART = ("--set", "privacy.records={levels = [0.1, 1]}", "--set", "privacy.epsilon=2.0")


def test_a_function_assigns_budgets(folder):
    change = ("--set", "data.budgets=my_budgets:by_age")
    run("run", *HEART, *LEVELS_OF_HEART, *change, "--out", "heart", cwd=folder)
    spends_within_levels(folder / "heart" / "result.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_budgets:fails", "failed (ValueError)"),
        ("my_budgets:too_few", "must return one ε > 0 for each record"),
        ("my_budgets:negative", "record 0: budget must be a finite number > 0"),
        ("my_budgets:number", "must be a function of records"),
        ("my_budgets:missing", "has no 'missing'"),
    ],
)
def test_a_function_that_assigns_no_budgets(refused, name, message):
    error = refused("plan", *HEART, *LEVELS_OF_HEART, "--set", f"data.budgets={name}")
    assert f"data.budgets = '{name}'" in error
    assert message in error
    assert "Xanthippe" not in error


@pytest.mark.parametrize("name", ["Budget", "budgets", "epsilon"])
def test_a_misnamed_column_is_not_taken_for_a_feature(folder, refused, name):
    path = folder / "hospitals" / "north.csv"
    header, _, rest = path.read_text().partition("\n")
    path.write_text(header.replace("budget", name) + "\n" + rest)
    assert f"column {name}: did you mean budget?" in refused("data", "check", "hospitals")


def test_a_function_does_not_replace_the_column(refused):
    change = ("--set", "data.budgets=my_budgets:by_age")
    assert "which it would ignore" in refused("plan", "trial.toml", *change)


def test_levels_are_finite(refused):
    change = ("--set", "privacy.records={levels = [1, inf]}")
    assert "must be finite, > 0 and ascending" in refused("plan", "trial.toml", *change)
