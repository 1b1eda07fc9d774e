"""``pacdp data`` as a user types it."""

import json
import os

import pytest

from .command import as_json, refused, run, start


def test_the_list_says_where_everything_is(tmp_path):
    settings = {"env": os.environ | {"PACDP_DATA_DIR": str(tmp_path)}}
    text = start("data", "list", **settings).stdout
    for name in ("heart", "heart-full", "mnist", "cifar10", "cifar100", "digits", "synthetic"):
        assert name in text
    assert "strokes" in text
    found = json.loads(run("data", "list", "--json", **settings).stdout)
    assert found["folder"] == str(tmp_path)
    assert found["data"]["heart"] == "built in"
    assert found["data"]["mnist"] is None


def test_check_says_what_is_in_it(tmp_path):
    found = as_json("data", "check", "heart", call=start)
    assert (found["train"], found["test"], found["shape"]) == (490, 250, [13])
    assert found["clients"]["cleveland"] == 200
    assert "intact" in run("data", "check", "digits").stdout
    (tmp_path / "a.csv").write_text(
        "unit,x,label\n" + "".join(f"p{n // 2},{n},{n % 2}\n" for n in range(40))
    )
    assert as_json("data", "check", tmp_path)["units"] == 16


def test_plot_draws_and_saves(tmp_path):
    picture, saved = tmp_path / "p.svg", tmp_path / "p.json"
    start(
        *("data", "plot", "digits", "--partition", "dirichlet", "--set", "alpha=0.3"),
        *("--clients", 8, "--seed", 5, "--out", picture, "--save", saved),
    )
    assert picture.read_text().startswith("<?xml")
    content = json.loads(saved.read_text())
    assert (content["kind"], content["seed"], len(content["clients"])) == ("dirichlet", 5, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "get", "minst"), "did you mean mnist"),
        (("data", "get", "mnist", "--via", "pigeon"), "must be one of upstream, packages"),
        (("data", "check", "cifar10"), "pacdp data get cifar10"),
        (("data", "check", "nowhere/at/all"), "unknown"),
        (("data", "check", "math:tau"), "must be a function that returns a data set"),
        (("data", "check", "math:sqrt"), "missing a required argument: 'x'"),
        (("data", "check", "builtins:min"), "must be a Python function"),
        (("data", "check", "os:getcwd"), "returns str, must be a data set"),
        (("data", "import", "mnist", "nowhere"), "nowhere: does not exist"),
        (("data", "plot", "digits", "--out", "p.txt"), "must be one of .png, .svg, .pdf"),
        (("data", "plot", "digits", "--set", "alpha"), "must be KEY=VALUE with a number"),
        (("data", "plot", "digits", "--partition", "dirichlet", "--set", "beta=1"), "alpha"),
        (("data", "plot", "digits", "--clients", "0"), "clients = 0"),
        (("data", "plot", "digits", "--partition", "natural"), "has no natural clients"),
        (("data", "plot", "digits", "--set", "seed=3"), "is no setting of iid"),
        (("data", "plot", "digits", "--seed", "-1"), "seed = -1"),
        (("data", "plot", "digits", "--save", "no/where.json"), "its folder does not exist"),
        (("data", "import", "heart", "nowhere"), "is built in"),
        (("data", "check", ""), "unknown"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    refuses, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.setenv("PACDP_DATA_DIR", str(tmp_path))
    assert message in refuses(*arguments)


def test_what_is_built_in_needs_no_getting():
    assert "built in" in run("data", "get", "heart").stdout


def test_a_wrong_archive_changes_nothing(tmp_path):
    home = tmp_path / "home"
    (tmp_path / "mnist.zip").write_bytes(b"PK\x03\x04 and nothing more")
    message = refused(
        *("data", "import", "mnist", tmp_path / "mnist.zip"),
        env=os.environ | {"PACDP_DATA_DIR": str(home)},
    )
    assert "mnist.zip" in message
    assert not home.exists()
