"""Budgets of single records, as a user sees them: plans, results and ledgers."""

import json
import sys

import pytest

from pacdp.cli import main

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


def test_a_clients_budget_is_a_cap_on_every_level(run):
    text = run("plan", *FIXED, "--set", "privacy.epsilon=[5.0, 5.0, 0.5, 0.5]")
    assert rows(text, "1", "5") == [
        ["1", "98", "0.5,", "1", "0.5,", "1", "0.2391,", "1"],
        ["5", "49", "0.5,", "5", "0.5,", "5", "1"],
    ]


def test_a_method_without_levels_says_that_it_takes_the_smallest(run):
    text = run("plan", *FIXED[:3], "--method", "nbafl")
    assert [row[3] for row in rows(text, "0.1", "1", "5")] == ["0.1"] * 3
    assert "nbafl knows no levels" in " ".join(text.split())


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
