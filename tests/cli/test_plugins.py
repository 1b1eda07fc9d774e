"""Methods, models and engines from outside the package, by module:name."""

import json
import subprocess

import pytest

from tests.cli.command import COMMAND, run, start

METHOD = '''
from typing import ClassVar

from pacdp.methods import Answer, Method


class BySize(Method):
    """Larger clients clip less."""

    name: ClassVar[str] = "by-size"
    scale: float = 0.05

    def bound(self, epsilon, *, round, rounds):
        return 1.0

    def train(self, context):
        bound = self.scale * context.client_plan.records**0.5
        for batch in context.batches():
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update())
'''
MODEL = """
from torch import nn


def make_net(shape, outputs, hidden=4):
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.Tanh(), nn.Linear(hidden, outputs))
"""
DATA = """
from dataclasses import replace

from pacdp.data import load_dataset


def load_few(*, records: int = 300):
    return replace(load_dataset("synthetic", records=records, clients=3), name="few")
"""
ENGINE = '''
from pacdp.federation.engines.serial import SerialEngine


class Backwards(SerialEngine):
    """The clients in reverse order, which must change nothing."""

    name = "backwards"

    def answer(self, clients, broadcast):
        answers = super().answer(dict(reversed(list(clients.items()))), broadcast)
        return {number: answers[number] for number in clients}
'''
ADVERSARIAL = "raise RuntimeError('imported')\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_methods.py").write_text(METHOD)
    (tmp_path / "my_models.py").write_text(MODEL)
    (tmp_path / "my_engines.py").write_text(ENGINE)
    (tmp_path / "my_data.py").write_text(DATA)
    (tmp_path / "hostile.py").write_text(ADVERSARIAL)
    return tmp_path


def test_a_method_of_ones_own_runs_by_its_path(folder):
    method = "my_methods:BySize:scale=0.1"
    start("run", "heart", "--profile", "smoke", "--method", method, "--out", "run", cwd=folder)
    plan = json.loads((folder / "run" / "plan.json").read_text())
    assert plan["method"] == "my_methods:BySize"
    assert plan["settings"] == {"scale": 0.1}
    for client in json.loads((folder / "run" / "result.json").read_text())["clients"]:
        assert client["epsilon_realised"] == pytest.approx(client["epsilon_budget"], rel=1e-9)
    # What is read later imports nothing by itself.
    again = run("report", "run", "--out", "page.html", cwd=folder, code=2)
    assert "pacdp --import my_methods" in again.stderr
    run("--import", "my_methods", "report", "run", "--out", "page.html", cwd=folder)
    assert (folder / "page.html").is_file()


def test_a_model_of_ones_own_runs_by_its_path(folder):
    settings = ["--set", "model.name=my_models:make_net", "--set", "model.settings.hidden=3"]
    command = ["run", "heart", "--profile", "smoke", "--method", "fixed", "--json"]
    done = run(*command, *settings, cwd=folder)
    assert json.loads(done.stdout)["parameters"] == 13 * 3 + 3 + 3 * 2 + 2


def test_a_data_set_of_ones_own_is_loaded_by_its_path(folder):
    settings = ["--set", "data.name=my_data:load_few", "--set", "data.options={records = 200}"]
    command = ["run", "heart", "--profile", "smoke", "--method", "fixed", "--json"]
    done = run(*command, *settings, cwd=folder)
    assert len(json.loads(done.stdout)["clients"]) == 3


def test_an_engine_of_ones_own_computes_the_same(folder):
    command = ["run", "heart", "--profile", "smoke", "--method", "fixed", "--json", "--engine"]
    results = []
    for engine in ("serial", "my_engines:Backwards"):
        done = run(*command, engine, cwd=folder)
        results.append(json.loads(done.stdout)["metrics"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "my_methods:Nothing"], "the module my_methods has no 'Nothing'"),
        (["--method", "my_models:make_net"], "must be a subclass of pacdp.methods.Method"),
        (["--method", "missing:Method"], "cannot be imported"),
        (["--method", "hostile:Method"], "cannot be imported (imported)"),
        (["--set", "model.name=my_models:nothing"], "the module my_models has no 'nothing'"),
        (["--engine", "missing:Engine", "--method", "fixed"], "cannot be imported"),
    ],
)
def test_a_bad_path_is_refused_in_one_line(folder, arguments, said):
    command = ["run", "heart", "--profile", "smoke", "--out", "run"]
    done = run(*command, *arguments, cwd=folder, code=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "run").exists()


def test_a_plan_never_imports_what_it_names(folder):
    """A plan comes from a server that may be hostile."""
    run("plan", "heart", "--method", "fixed", "--out", "plan.json", cwd=folder)
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "method": "hostile:Method"}))
    script = (
        "import sys; from pathlib import Path; from pacdp.federation import Plan\n"
        "try:\n    Plan.load(Path('plan.json'))\n"
        "except Exception as error:\n    print(error, 'hostile' in sys.modules)\n"
    )
    done = subprocess.run(
        [COMMAND.parent / "python", "-c", script], cwd=folder, capture_output=True, text=True
    )
    assert "its module is not imported" in done.stdout
    assert done.stdout.strip().endswith("False")
