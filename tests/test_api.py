"""The package as a user imports it."""

import subprocess
import sys

import pytest

import pacdp
from pacdp.errors import InputError
from pacdp.methods import build_method
from pacdp.privacy import SQLiteLedger


def test_importing_the_package_and_asking_for_help_loads_nothing_heavy():
    script = (
        "import sys, pacdp, pacdp.cli.app as app\n"
        "from typer.main import get_command\n"
        "for words in (['--version'], ['--help'], ['run', '--help'], ['account', '--help']):\n"
        "    get_command(app.app).main(words, standalone_mode=False)\n"
        "print(sorted({'torch', 'scipy', 'numpy', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_every_public_name_is_there():
    assert {"load_experiment", "plan", "fit", "tune", "run", "compare", "report"} <= set(
        pacdp.__all__
    )
    for name in pacdp.__all__:
        assert getattr(pacdp, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pacdp.nothing


def test_a_run_and_what_it_says(tmp_path):
    result = pacdp.run(
        "heart-personalised", method="fixed", seed=1, profile="smoke", folder=tmp_path / "run"
    )
    assert 0 < result.accuracy < 1
    assert result.clients[0].epsilon_spent <= result.clients[0].epsilon_budget
    assert len(result.history) == result.plan.rounds
    page = result.report(tmp_path / "out.html")
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match="exists already"):
        result.report(page)
    both = pacdp.report([tmp_path / "run"], tmp_path / "again.html")
    assert both.is_file()


def test_methods_as_values_and_as_texts_are_the_same():
    method = build_method("fixed", {"clipping_bound": 2.0})
    changes = {"training.rounds": 2, "privacy.epsilon": 1.0}
    first = pacdp.run("heart", method=method, changes=changes)
    second = pacdp.run("heart", method="fixed:clipping_bound=2", changes=changes)
    assert first.plan == second.plan
    assert first.metrics == second.metrics


def test_ledgers_are_drawn_on(tmp_path):
    changes = {"training.rounds": 1}
    plan = pacdp.plan("heart", method="fixed", changes=changes)
    ledgers = [
        SQLiteLedger.create(tmp_path / client.name, client=client.name, budget=plan.budget(number))
        for number, client in enumerate(plan.clients)
    ]
    given = {"changes": changes, "ledgers": ledgers, "folder": tmp_path / "run"}
    with pytest.raises(InputError, match="and no ledgers"):
        pacdp.run("heart", method="fixed", resume=True, **given)
    assert not (tmp_path / "run").exists()
    pacdp.run("heart", method="fixed", **given)
    assert all(ledger.filter.spent for ledger in ledgers)
    assert (tmp_path / "run" / "report.html").is_file()


def test_changes_that_contradict_a_configuration_are_refused():
    heart = pacdp.load_experiment("heart")
    assert pacdp.load_experiment(heart) is heart
    with pytest.raises(InputError, match="given by name"):
        pacdp.load_experiment(heart, profile="smoke")


def test_options_of_the_command_line_name_what_there_is():
    from pacdp.cli import options
    from pacdp.privacy import ACCOUNTANTS, DEFAULT_DELTA, Adjacency, Scope

    assert options.ACCOUNTANTS.split("|") == list(ACCOUNTANTS)
    assert options.ADJACENCIES.split("|") == [adjacency.value for adjacency in Adjacency]
    assert options.SCOPES.split("|") == [scope.value for scope in Scope]
    assert options.DEFAULT_DELTA == DEFAULT_DELTA
