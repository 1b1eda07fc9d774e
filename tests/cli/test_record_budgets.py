"""Budgets of single records, as a user sees them: plans, results and ledgers."""

import csv
import io
import json
import sys

import pytest
from rich.console import Console

from pacdp.cli import main
from pacdp.cli.levels import cost_table
from pacdp.experiments import prepare_run, read_experiment
from pacdp.experiments.levels import summarise_planned
from pacdp.privacy import Adjacency, LevelTerms, Release, SQLiteLedger

FIXED = ("heart-records", "--profile", "smoke", "--method", "fixed")
LEVELS = [0.1, 1.0, 5.0]


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command in this process, since starting another takes seconds."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pacdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    return call


@pytest.fixture
def as_json(run):
    return lambda *arguments: json.loads(run(*arguments, "--json"))


def rows(text, *first):
    """Return the rows of a printed table that begin with one of these words, as lists of words."""
    return [line.split() for line in text.splitlines() if line.split()[:1] in [[w] for w in first]]


def test_a_plan_shows_what_each_level_costs_and_who_has_it(run, as_json):
    text = run("plan", *FIXED)
    assert rows(text, "0.1", "1", "5") == [
        ["0.1", "343", "0.1", "0.1", "0.029"],
        ["1", "98", "1", "1", "0.2391"],
        ["5", "49", "5", "5", "1"],
    ]
    assert ["cleveland", "140", "40", "20"] in rows(text, "cleveland")
    assert text.count("ε at δ = 1e-05, zero-out") == 3
    for client in as_json("plan", *FIXED)["plan"]["clients"]:
        assert [level["epsilon"] for level in client["levels"]] == LEVELS
        assert sum(level["units"] for level in client["levels"]) == client["records"]
        bounds = [bound for bound, _ in client["charges"][0]["levels"]]
        assert bounds == pytest.approx([0.029, 0.2391, 1.0], rel=1e-3)


def test_a_clients_budget_is_a_cap_on_every_level(run):
    text = run("plan", *FIXED, "--set", "privacy.epsilon=[5.0, 5.0, 0.5, 0.5]")
    assert rows(text, "1", "5") == [
        ["1", "98", "0.5,", "1", "0.5,", "1", "0.2391,", "1"],
        ["5", "49", "0.5,", "5", "0.5,", "5", "1"],
    ]


def test_a_method_without_levels_says_that_it_takes_the_smallest(run):
    text = run("plan", *FIXED[:3], "--method", "nbafl")
    assert [row[3] for row in rows(text, "0.1", "1", "5")] == ["0.1"] * 3
    assert "nbafl does not support levels" in " ".join(text.split())


def test_levels_that_are_sampled_show_their_rates(capsys):
    experiment = read_experiment("heart-records", profile="smoke")
    plan = prepare_run(experiment, method=experiment.build_method("fixed")).plan
    levels = [
        level._replace(sampling_rates=[rate] * 4)
        for level, rate in zip(summarise_planned(plan), (0.01, 0.2, 1.0), strict=True)
    ]
    Console().print(cost_table(plan, levels, "planned"))
    assert [row[-1] for row in rows(capsys.readouterr().out, "0.1", "1", "5")] == [
        "0.01",
        "0.2",
        "1",
    ]


def test_without_record_budgets_there_is_no_table_of_levels(run, as_json):
    assert "C_j" not in run("plan", "heart", "--profile", "smoke")
    assert "levels" not in as_json("plan", "heart", "--profile", "smoke")["plan"]["clients"][0]


def test_a_run_shows_what_each_level_spent(run, as_json):
    text = run("run", *FIXED)
    assert "ε over records     0.1 / 0.1 / 5 (minimum / median / maximum)" in text
    assert [row[:4] for row in rows(text, "0.1", "1", "5")] == [
        ["0.1", "343", "0.1", "0.1"],
        ["1", "98", "1", "1"],
        ["5", "49", "5", "5"],
    ]
    for client in as_json("run", *FIXED)["clients"]:
        for level in client["levels"]:
            assert level["epsilon_spent"] <= level["epsilon_budget"]
            assert level["epsilon_spent"] == pytest.approx(level["epsilon"], rel=1e-6)


@pytest.mark.parametrize("name", ["heart-records", "mnist-records"])
def test_a_curve_is_fitted_for_the_shipped_experiments(name, as_json):
    found = as_json("run", name, "--profile", "smoke")
    assert found["method"] == "pac-dp"
    assert [level["epsilon"] for level in found["clients"][0]["levels"]] == LEVELS


@pytest.fixture
def ledger(run, tmp_path):
    """A ledger with three levels, the last above the cap, and two releases."""
    path = tmp_path / "a.ledger"
    levels = [word for epsilon in LEVELS for word in ("--level", epsilon)]
    run("ledger", "create", path, "--client", "hospital a", "--epsilon", 3, *levels)
    release = Release(
        noise_multiplier=4,
        sensitivity=1,
        adjacency=Adjacency.ZERO_OUT,
        count=2,
        levels=(LevelTerms(0.03), LevelTerms(0.2), LevelTerms(1.0)),
    )
    SQLiteLedger(path).reserve(release, run="one")
    return path


def test_a_ledger_shows_each_level(run, as_json, ledger):
    text = run("ledger", "show", ledger)
    levels = [line for line in text.splitlines() if line.startswith("level")]
    assert [line.split()[1] for line in levels] == ["0.1", "1", "5"]
    assert all(
        "zero-out" in line and "left: one release with noise z >=" in line for line in levels
    )
    assert "of a budget of 0.1;" in levels[0]
    assert "of a budget of 3, capped;" in levels[2]
    found = as_json("ledger", "show", ledger)
    assert [level["epsilon"] for level in found["levels"]] == LEVELS
    assert [level["budget"]["epsilon"] for level in found["levels"]] == [0.1, 1.0, 3.0]
    spent = [level["realised"]["epsilon"] for level in found["levels"]]
    assert 0 < spent[0] < spent[1] < spent[2] == found["realised"]["epsilon"]
    assert all(level["realised"]["adjacency"] == "zero-out" for level in found["levels"])


def test_a_ledger_without_levels_shows_none(run, as_json, tmp_path):
    path = tmp_path / "b.ledger"
    assert "level" not in run("ledger", "create", path, "--client", "b", "--epsilon", 1)
    assert "levels" not in as_json("ledger", "show", path)


def test_the_budget_of_a_level_is_changed_by_its_epsilon(run, as_json, ledger):
    text = run(
        "ledger", "set-budget", ledger, "--level", 0.1, "--epsilon", 0.2, "--reason", "board"
    )
    # The declared ε remains the level's name.
    assert "level 0.1" in text
    assert "of a budget of 0.2" in text
    assert [level["epsilon"] for level in as_json("ledger", "show", ledger)["levels"]] == LEVELS
    run("ledger", "set-budget", ledger, "--epsilon", 8)
    shown = as_json("ledger", "show", ledger)["levels"]
    assert [level["budget"]["epsilon"] for level in shown] == [0.2, 1, 5]


def test_levels_are_exported(run, ledger):
    run("ledger", "set-budget", ledger, "--level", 0.1, "--epsilon", 0.2)
    table = list(csv.DictReader(io.StringIO(run("ledger", "export", ledger, "--format", "csv"))))
    entries = [json.loads(line) for line in run("ledger", "export", ledger).splitlines()]
    assert json.loads(table[0]["levels"]) == LEVELS == entries[0]["levels"]
    assert json.loads(table[1]["levels"]) == [[0.03, 1.0], [0.2, 1.0], [1.0, 1.0]]
    assert (table[2]["kind"], table[2]["level"], table[2]["levels"]) == ("budget", "0", "")


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        ((1, 0.1), "levels 1, 0.1: must be > 0 and ascending"),
        ((1, 1), "must be > 0 and ascending"),
        ((0,), "level = 0: must be"),
        (("nan",), "level = nan: must be"),
        (("much",), "--level"),
        ((1e308,), "must be a number from 1e-100 to 1e+100"),
    ],
)
def test_bad_levels_are_refused(refuses, levels, reason):
    words = [word for epsilon in levels for word in ("--level", epsilon)]
    assert reason in refuses(
        "ledger", "create", "a.ledger", "--client", "a", "--epsilon", 3, *words
    )


@pytest.mark.parametrize(
    ("level", "epsilon", "reason"),
    [
        (0.3, 0.2, "--level 0.3: is no level of this ledger, which has 0.1, 1, 5"),
        (0.1, 0.0, "epsilon = 0: must be"),
        (0.1, 0.001, "below the spent"),
    ],
)
def test_bad_changes_of_a_level_are_refused(ledger, capsys, monkeypatch, level, epsilon, reason):
    before = ledger.read_bytes()
    words = ["ledger", "set-budget", ledger, "--level", level, "--epsilon", epsilon]
    monkeypatch.setattr(sys, "argv", ["pacdp", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    out, error = capsys.readouterr()
    assert (end.value.code, out, error.count("\n")) == (2, "", 1)
    assert reason in error
    assert ledger.read_bytes() == before
