"""``pacdp fit`` and ``pacdp curve``, and runs that fit a curve first."""

import json

import pytest

from pacdp.curve import Curve

from .command import as_json, run, start

GRID = (
    *("--set", "offline.budgets={low=0.05,high=5.0,count=4}"),
    *("--set", "offline.bounds={low=0.05,high=5.0,count=4}"),
    *("--set", "offline.seeds=2"),
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A curve for the small Heart experiment."""
    path = tmp_path_factory.mktemp("curves") / "curve.json"
    text = start("fit", "heart", "--profile", "smoke", "--out", path, *GRID).stdout
    return path, text


def test_fit_writes_a_curve_and_says_how_good_it_is(fitted):
    path, text = fitted
    for word in ("synthetic-for-heart", "left-out budgets", "regret", "zero-out", "4 budgets x 4"):
        assert word in text
    curve = Curve.load(path)
    assert curve.evidence.plan["training"]["rounds"] == 3
    assert [item.name for item in path.parent.iterdir()] == ["curve.json"]


def test_the_curve_is_used_where_it_fits(fitted):
    path, _ = fitted
    curve = f"methods.pac-dp.curve={path}"
    found = as_json("run", "heart", "--profile", "smoke", "--set", curve)
    assert found["clients"][0]["epsilon_realised"] <= 0.1


def test_show_eval_and_plot(fitted, tmp_path):
    path, text = fitted
    assert start("curve", "show", path).stdout.splitlines()[0] == text.splitlines()[0]
    shown = as_json("curve", "show", path)
    assert "scores" not in shown
    assert shown["proxy"]["stands_for"] == "heart"
    found = as_json("curve", "eval", path, "--epsilon", 0.5, "--epsilon", 50)
    inside, outside = found["values"]
    assert (inside["clamped"], outside["clamped"]) == (False, True)
    assert 0.5 < inside["expected"] <= 1
    assert found["adjacency"] == "zero-out"
    assert inside["bound"] == Curve.load(path)(0.5)
    start("curve", "plot", path, "--out", tmp_path / "curve.svg")
    assert "budget ε" in (tmp_path / "curve.svg").read_text()


def test_curves_of_two_proxies_are_compared(fitted, tmp_path):
    path, _ = fitted
    other = tmp_path / "other.json"
    run("fit", "heart", "--profile", "smoke", "--proxy", "breast-cancer", "--out", other, *GRID)
    rows = as_json("curve", "compare", path, other)["rows"]
    assert len(rows) == 2 * 4
    assert {row["curve"] for row in rows} == {str(path), str(other)}


def test_a_run_without_a_curve_fits_one_first_and_keeps_it(tmp_path):
    experiment = tmp_path / "mine.toml"
    run("init", experiment, "--data", "heart")
    text = experiment.read_text()
    start, end = text.index("[methods.pac-dp]"), text.index("[methods.fixed]")
    experiment.write_text(text[:start] + text[end:])
    out = tmp_path / "run"
    arguments = (experiment, "--profile", "smoke", "--out", out, *GRID)
    said = run("run", *arguments)
    assert "the experiment has no curve: fitting one on synthetic-for-heart" in said.stderr
    curve = Curve.load(out / "curve.json")
    assert json.loads((out / "plan.json").read_text())["settings"]["curve"]["family"] == (
        curve.family
    )
    # Taken up again, it does not fit again.
    assert "fitting" not in run("run", *arguments, "--resume").stderr
    found = run("compare", experiment, "--profile", "smoke", "--seeds", 1, *GRID)
    assert "pac-dp" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "heart", "--proxy", "mnist", "--out", "c.json"), "mnist"),
        (("fit", "heart", "--proxy", "heart-full", "--out", "c.json"), "has records of shape"),
        (("fit", "heart", "--out", "nowhere/c.json"), "its folder does not exist"),
        (("fit", "heart", "--set", "offline.seed=3", "--out", "c.json"), "did you mean seeds"),
        (("fit", "heart", "--set", "offline.budgets=[1.0]", "--out", "c.json"), "offline"),
        (("fit", "heart", "--set", "hot_start.epochs=1", "--out", "c.json"), "hot_start"),
        (
            ("fit", "heart", "--cluster", "127.0.0.1:1", "--out", "c.json"),
            "--cluster 127.0.0.1:1: cannot be reached",
        ),
        (("curve", "show", "nowhere.json"), "nowhere.json"),
        (("curve", "eval", "nowhere.json", "--epsilon", "0.1"), "nowhere.json"),
        (("curve", "compare", "nowhere.json"), "must be two or more"),
        (("plan", "mnist"), "methods.pac-dp.curve: is missing; pacdp run fits one by itself"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(refuses, arguments, message):
    assert message in refuses(*arguments)


def test_a_curve_is_not_written_over(fitted, refuses):
    path, _ = fitted
    assert "exists already" in refuses("fit", "heart", "--out", str(path))


def test_a_curve_of_another_plan_is_refused(fitted, refuses):
    path, _ = fitted
    said = refuses("run", "heart", "--set", f"methods.pac-dp.curve={path}")
    assert "was made for another plan (training.rounds is 10, but was 3)" in said
