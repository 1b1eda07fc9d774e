"""The command as a user types it, in a process of its own."""

import csv
import io
import json
import re

import pytest

import pacdp
from pacdp.privacy import Adjacency, Release, SQLiteLedger

from .command import as_json, refused, run, start


def test_version():
    assert start("--version").stdout == f"pacdp {pacdp.__version__}\n"


def test_help_names_every_command():
    text = start("--help").stdout
    for name in (
        "account",
        "calibrate",
        "demo",
        "ledger",
        "data",
        "init",
        "tune",
        "plan",
        "run",
        "compare",
    ):
        assert re.search(rf"\b{name}\b", text)
    assert run().stdout.strip() == text.strip()


def test_account():
    found = as_json("account", "--noise-multiplier", 48.448, "--releases", 13, call=start)
    assert found["epsilon"] == pytest.approx(0.246930, abs=1e-6)
    assert found["delta"] == 1e-5
    assert found["adjacency"] == "zero-out"
    assert found["accountant"] == "exact"
    assert found["noise_multiplier"] == 48.448
    assert found["releases"] == 13
    text = run("account", "--noise-multiplier", 48.448, "--releases", 13).stdout
    assert "ε = 0.24693 at δ = 1e-05, zero-out (exact)" in text


@pytest.mark.parametrize(
    ("extra", "epsilon"),
    [
        (("--adjacency", "replace-one"), 0.525479),
        (("--accountant", "paper-rdp"), 0.359977),
        (("--accountant", "pld"), 0.246930),
        (("--delta", "1e-6"), 0.289404),
    ],
)
def test_account_options(extra, epsilon):
    found = as_json("account", "--noise-multiplier", 48.448, "--releases", 13, *extra)
    assert found["epsilon"] == pytest.approx(epsilon, rel=1e-5)


def test_account_of_unequal_multipliers():
    noises = [part for noise in (20, 30, 40, 25) for part in ("--noise-multiplier", noise)]
    found = as_json("account", *noises, "--releases", 1)
    assert found["epsilon"] == pytest.approx(0.25407203, abs=1e-8)
    assert found["noise_multiplier"] == [20, 30, 40, 25]
    assert "given 2 times" in refused("account", *noises, "--releases", 1, "--releases", 2)


def test_account_of_sampled_records():
    found = as_json("account", "--noise-multiplier", 10, "--releases", 100, "--sampling-rate", 0.1)
    assert found["accountant"] == "pld"
    assert found["epsilon"] == pytest.approx(0.3471, abs=1e-4)


def test_calibrate():
    found = as_json("calibrate", "--epsilon", 0.1, "--releases", 13, call=start)
    assert found["noise_multiplier"] == pytest.approx(110.86914, abs=1e-5)
    assert found["epsilon"] == 0.1
    doubled = as_json("calibrate", "--epsilon", 0.1, "--releases", 13, "--adjacency", "replace-one")
    assert doubled["noise_multiplier"] == pytest.approx(2 * found["noise_multiplier"])


def test_per_release_never_stands_without_the_whole_run():
    arguments = ("--epsilon", 0.1, "--releases", 13, "--scope", "per-release")
    found = as_json("calibrate", *arguments)
    assert found["noise_multiplier"] == pytest.approx(30.74957, abs=1e-5)
    assert found["epsilon_total"] > 0.35
    assert "whole run" in run("calibrate", *arguments).stdout


def test_calibrate_the_sampling_rate():
    arguments = ("--epsilon", 0.1, "--releases", 100, "--noise-multiplier", 10)
    found = as_json("calibrate", *arguments)
    assert 0 < found["sampling_rate"] < 0.1
    assert "sampling rate" in run("calibrate", *arguments).stdout
    assert "leave out" in refused("calibrate", *arguments, "--sampling-rate", 0.5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("calibrate --epsilon 0 --releases 13", "epsilon = 0: must be a finite number > 0"),
        ("calibrate --epsilon -1 --releases 13", "epsilon = -1: must be"),
        ("calibrate --epsilon nan --releases 13", "epsilon = nan: must be"),
        ("calibrate --epsilon inf --releases 13", "epsilon = inf: must be"),
        ("calibrate --epsilon much --releases 13", "--epsilon"),
        ("calibrate --epsilon 1 --releases 0", "releases = 0: must be a whole number from 1"),
        ("calibrate --epsilon 1 --releases 2.5", "--releases"),
        ("calibrate --epsilon 1 --releases 13 --delta 1", "delta = 1: must be a number in (0, 1)"),
        ("calibrate --epsilon 1 --releases 13 --adjacency near", "must be one of zero-out, repl"),
        ("calibrate --epsilon 1 --releases 13 --accountant magic", "must be one of exact, rdp"),
        ("calibrate --epsilon 0.1 --releases 13 --accountant paper-rdp", "less than 0.1827"),
        ("account --noise-multiplier 0 --releases 13", "noise_multiplier = 0: must be"),
        ("account --noise-multiplier 1 --releases 13 --sampling-rate 2", "must be a number in (0"),
        ("account --noise-multiplier 1", "Missing option '--releases'"),
        ("account --noise 1 --releases 1", "No such option: --noise"),
        ("accuont", "No such command"),
        ("ledger show nowhere.ledger", "nowhere.ledger: cannot be read"),
        ("ledger create /nowhere/a --client a --epsilon 1", "cannot be created"),
        ("ledger create a.ledger --client a --epsilon 0", "must be a finite number > 0"),
        ("ledger create a.ledger --client a --epsilon 1e308", "must be a number from 1e-100 to"),
        ("calibrate --epsilon 1e308 --releases 13", "must be a number from 1e-100 to 1e+100"),
        ("calibrate --epsilon 1e-320 --releases 13", "must be a number from 1e-100 to 1e+100"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reason in refused(*arguments.split())
    assert not list(tmp_path.iterdir())


def test_debug_shows_where_it_came_from():
    process = start("--debug", "calibrate", "--epsilon", 0, "--releases", 1, code=1)
    assert "Traceback" in process.stderr


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.ledger"
    run("ledger", "create", path, "--client", "hospital a", "--epsilon", 0.5)
    return path


def spend(path, count=2):
    release = Release.clipped_sum(noise_multiplier=100, count=count, adjacency=Adjacency.ZERO_OUT)
    return SQLiteLedger(path).reserve(release, run="one")[0].hash


def test_ledger_show(path):
    spend(path)
    text = start("ledger", "show", path).stdout
    assert "hospital a" in text
    assert "budget   ε = 0.5 at δ = 1e-05, zero-out (exact)" in text
    assert "over 2 releases" in text
    found = as_json("ledger", "show", path)
    assert found["budget"]["adjacency"] == found["realised"]["adjacency"] == "zero-out"
    assert 0 < found["realised"]["epsilon"] < 0.5
    assert found["head"] in text
    assert found["least_z_left"] > 6


def test_ledger_verify_and_a_pinned_head(path):
    head = spend(path)
    assert f"intact, 2 entries, head {head}" in run("ledger", "verify", path).stdout
    assert run("ledger", "verify", path, "--head", head)
    assert "older or another copy" in refused(
        *("ledger", "verify", path, "--head", "0" * 64), call=start
    )


def test_ledger_export(path):
    spend(path)
    entries = [json.loads(line) for line in run("ledger", "export", path).stdout.splitlines()]
    assert [entry["kind"] for entry in entries] == ["open", "release"]
    table = list(
        csv.DictReader(io.StringIO(run("ledger", "export", path, "--format", "csv").stdout))
    )
    assert [row["hash"] for row in table] == [entry["hash"] for entry in entries]
    assert table[1]["noise_multiplier"] == "100.0"
    assert "must be one of json, csv" in refused("ledger", "export", path, "--format", "xml")


def test_ledger_set_budget(path):
    spend(path)
    assert "ε = 0.7" in run("ledger", "set-budget", path, "--epsilon", 0.7).stdout
    assert "below the spent" in refused("ledger", "set-budget", path, "--epsilon", 0.01)
    before = path.read_bytes()
    error = refused("ledger", "set-budget", path, "--epsilon", 1e308)
    assert "epsilon = 1e+308: must be a number from 1e-100 to 1e+100" in error
    assert path.read_bytes() == before
    assert SQLiteLedger(path).filter.budget.epsilon == 0.7
    assert "exists already" in refused("ledger", "create", path, "--client", "b", "--epsilon", 1)


def test_demo(tmp_path):
    text = start("demo", "--out", tmp_path / "demo").stdout
    for word in ("switzerland", "refused", "pac-dp", "dp-fedavg", "rpdp-fl", "chance", "zero-out"):
        assert word in text
    assert "F(ε) was fitted on public data" in text
    assert (tmp_path / "demo" / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "demo").rglob("*.ledger"))) == 4
