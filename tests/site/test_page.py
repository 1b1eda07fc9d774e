"""The page for the data-protection officer: complete, safe, and loaded from nowhere."""

import re
from datetime import UTC, datetime

import pytest

from pacdp.federation.wire import Code
from pacdp.reporting.site_page import render_site_page
from pacdp.site import Site
from pacdp.site.refusal_counts import MEANINGS
from pacdp.site.status import read_status
from tests.cli.command import refused, run
from tests.reporting.test_page import Document
from tests.site.test_plans import with_budgets
from tests.site.trial import heart_plan, make_trial

TIME = datetime(2026, 11, 3, 12, 0, tzinfo=UTC)


@pytest.fixture
def trial(tmp_path, monkeypatch):
    plan, name, records = with_budgets()
    trial = make_trial(tmp_path, plan, client=name, records=records)

    def fail(*_):
        raise ValueError("not finite")

    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        site.answer(b"nonsense")
        site.answer(trial.broadcast(0, factor=2.0))
        monkeypatch.setattr(site, "_encode", fail)
        site.answer(trial.broadcast(1))
        site.refusals.save()
    return trial


def test_it_says_what_an_officer_needs(trial):
    html = render_site_page(read_status(trial.settings), time=TIME)
    text = " ".join(" ".join(Document(html).text).split())
    for phrase in (
        *("Privacy budget of cleveland", "2026-11-03 12:00:00 UTC", "Budget ε = 1"),
        *("Left 67 %", "Rounds answered 2 of 6", "Rounds left 4", "Refused 3"),
        *("the reply was lost or could not be computed: round 2", "covers the rest of the"),
        *("the server sees", "nobody sees", "Budget levels", trial.ledger.head),
        *(
            trial.settings.accepted,
            "not in the expected format, or too long",
            "debited for another",
        ),
    ):
        assert phrase in text


def test_it_loads_nothing_and_runs_nothing(trial):
    html = render_site_page(read_status(trial.settings), time=TIME)
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\((?!#)", html)
    document = Document(html)
    assert not document.all("script")
    assert not document.all("img")
    policy = next(each for each in document.all("meta") if "http-equiv" in each)["content"]
    assert "default-src 'none'" in policy
    assert "script" not in policy


def test_text_of_others_is_escaped(trial):
    state = read_status(trial.settings)
    state["client"] = "<script>alert(1)</script>"
    state["plan"]["agreement"]["plan"] = "<img src=x>"
    document = Document(render_site_page(state))
    assert not document.all("script")
    assert not document.all("img")


def test_it_warns(trial):
    trial.settings.head.write_text("0" * 64)
    html = render_site_page(read_status(trial.settings))
    assert "an older copy was restored" in html
    assert "all of the budget counts as spent" in html
    trial.settings.head.unlink()
    assert "cannot be read" in render_site_page(read_status(trial.settings))
    heart_plan(rounds=3).save(trial.settings.plan)
    assert "is not the one that was accepted" in render_site_page(read_status(trial.settings))
    trial.settings.plan.unlink()
    assert "There is no usable plan" in render_site_page(read_status(trial.settings))


def test_the_command_writes_it(tmp_path, trial):
    page = tmp_path / "page.html"
    text = run("site", "status", "--settings", trial.toml, "--html", page).stdout
    assert "budget" in text
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["key", "ledger", "data", "plan", "head"])
def test_it_never_replaces_a_file_of_the_site(trial, name):
    path = getattr(trial.settings, name)
    before = path.read_bytes()
    message = refused("site", "status", "--settings", trial.toml, "--html", path)
    assert "is a file of the site" in message
    assert path.read_bytes() == before


def test_every_code_has_a_meaning():
    assert set(MEANINGS) == set(Code)


@pytest.mark.parametrize("method", ["rpdp-fl", "fixed"])
def test_rounds_that_are_left_are_counted(tmp_path, method):
    epsilon = (0.5, 1.0, 1.0, 1.0) if method == "rpdp-fl" else 1.0
    trial = make_trial(tmp_path, heart_plan(method=method, rounds=4, epsilon=epsilon))
    left = [read_status(trial.settings)["plan"]["left"]]
    with Site(trial.settings) as site:
        for number in range(4):
            site.answer(trial.broadcast(number))
            left.append(read_status(trial.settings)["plan"]["left"])
    assert left == [4, 3, 2, 1, 0]
