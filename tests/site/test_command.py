"""``pacdp site`` as its owner types it: accept, serve and status, with the package's own format."""

import contextlib
import json
import os
import pty
import shutil
import subprocess

import pytest
import torch

from pacdp.federation import LocalModel, Server
from pacdp.federation.wire import plan_digest
from pacdp.site import Site, SiteSettings
from pacdp.sockets import ask
from tests.cli.command import COMMAND, as_json, refused, run
from tests.site.test_answer import Killed, kill
from tests.site.test_plans import with_budgets
from tests.site.trial import ROUNDS, heart_plan, make_trial, serving_installed


def call(trial, frame):
    return ask(trial.settings.socket, frame, timeout=60)


def test_accept_says_what_is_agreed_to_and_records_it(tmp_path):
    trial = make_trial(tmp_path, accepted=False)
    sent = tmp_path / "sent.json"
    shutil.move(tmp_path / "plan.json", sent)
    before = trial.toml.read_text()
    # Nobody can be asked, so nothing is recorded.
    process = run("site", "accept", sent, "--settings", trial.toml, code=2)
    assert "use --yes" in process.stderr
    assert trial.toml.read_text() == before
    text = run("site", "accept", sent, "--settings", trial.toml, "--yes").stdout
    for phrase in (
        *("cleveland", "200 records", "at most 6 of them", "at most 6 noisy results"),
        *("ε = 1 at δ = 1e-05, zero-out", "zero-out", "covers the whole training"),
        *("the server sees", "nobody sees", plan_digest(trial.plan)),
    ):
        assert phrase in text
    assert SiteSettings.load_toml(trial.toml).accepted == plan_digest(trial.plan)
    assert trial.toml.read_text().endswith(before)
    Site(trial.settings).close()


@pytest.mark.parametrize("answer", ["y\n", "n\n", "\x04"])
def test_accept_asks_at_a_terminal(tmp_path, answer):
    trial = make_trial(tmp_path, accepted=False)
    plan = tmp_path / "plan.json"
    command = [str(COMMAND), "site", "accept", str(plan), "--settings", str(trial.toml)]
    terminal, inner = pty.openpty()
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner) as process:
        os.close(inner)
        shown = b""
        while b"Do you agree?" not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, answer.encode())
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while os.read(terminal, 1024):
                pass
        code = process.wait(60)
    os.close(terminal)
    accepted = SiteSettings.load_toml(trial.toml).accepted
    assert (code, accepted) == ((0, plan_digest(trial.plan)) if answer == "y\n" else (1, None))


def test_accept_names_budget_levels(tmp_path):
    plan, name, records = with_budgets()
    trial = make_trial(tmp_path, plan, client=name, records=records, accepted=False)
    plan = tmp_path / "plan.json"
    text = run("site", "accept", plan, "--settings", trial.toml, "--yes").stdout
    assert "150 records with ε = 0.1, of which the training costs 0.1" in text
    assert "50 records with ε = 1" in text


def test_accept_refuses_what_the_site_could_not_serve(tmp_path):
    trial = make_trial(tmp_path, accepted=False)
    content = json.loads((tmp_path / "plan.json").read_text())
    content["clients"][0]["charges"][0]["noise_multiplier"] *= 0.9
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(content))
    settings = ("--settings", trial.toml, "--yes")
    assert "is not what its settings imply" in refused("site", "accept", forged, *settings)
    heart_plan(method="fedavg").save(tmp_path / "fedavg.json")
    assert "no privacy guarantee" in refused("site", "accept", tmp_path / "fedavg.json", *settings)
    heart_plan(delta=1e-3).save(tmp_path / "delta.json")
    assert "its ledger has delta" in refused("site", "accept", tmp_path / "delta.json", *settings)
    assert SiteSettings.load_toml(trial.toml).accepted is None


def test_accept_writes_the_first_head_and_never_another(tmp_path):
    trial = make_trial(tmp_path)
    plan, settings = tmp_path / "plan.json", ("--settings", trial.toml, "--yes")
    trial.settings.head.unlink()
    run("site", "accept", plan, *settings)
    assert trial.settings.head.read_text().strip() == trial.ledger.head
    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
    trial.settings.head.unlink()
    assert "newest head of the ledger" in refused("site", "accept", plan, *settings)
    trial.settings.head.write_text("0" * 64)
    assert "an older or another copy" in refused("site", "accept", plan, *settings)


def test_status_tells_budget_rounds_and_refusals(tmp_path):
    trial = make_trial(tmp_path)
    settings = ("--settings", trial.toml)
    state = as_json("site", "status", *settings)
    assert state["plan"]["answered"] == 0
    assert not state["running"]
    with serving_installed(trial):
        for number in range(2):
            frame = trial.broadcast(number)
            assert trial.read(call(trial, frame), frame).reply.round == number
        assert trial.read(call(trial, b"nonsense"), b"") == "malformed"
        state = as_json("site", "status", *settings)
    assert state["running"]
    assert state["plan"]["accepted"]
    assert (state["plan"]["answered"], state["plan"]["last_round"]) == (2, 2)
    assert state["releases"] == 2
    assert state["refusals"] == {"malformed": 1}
    assert state["head_file"] == "known"
    assert 0 < state["spent"]["epsilon"] < state["budget"]["epsilon"] == 1.0
    text = run("site", "status", *settings).stdout
    assert "2 of at most 6 answered" in text
    assert "1 malformed" in text
    trial.settings.head.write_text("0" * 64)
    assert "NEWER than the ledger" in run("site", "status", *settings).stdout
    trial.settings.plan.unlink()
    assert "none usable" in run("site", "status", *settings).stdout


def test_status_names_rounds_that_were_paid_and_have_no_reply(tmp_path, monkeypatch):
    trial = make_trial(tmp_path)

    def fail(*_):
        raise ValueError("not finite")

    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        monkeypatch.setattr(site, "_encode", fail)
        site.answer(trial.broadcast(1))
        monkeypatch.setattr(site, "_encode", kill)
        with pytest.raises(Killed):
            site.answer(trial.broadcast(2))
    plan = as_json("site", "status", "--settings", trial.toml)["plan"]
    assert (plan["lost"], plan["unanswered"]) == ([2], [3])


def test_keys_are_made_once(tmp_path):
    public = run("site", "key", tmp_path / "a.key").stdout.strip()
    assert len(public) == 64
    assert "never overwritten" in refused("site", "key", tmp_path / "a.key")


def test_a_whole_run_through_the_wire(tmp_path):
    trial = make_trial(tmp_path)
    with Site(trial.settings) as site:
        server = Server(trial.plan, LocalModel(trial.plan).state())
        for number in range(ROUNDS):
            frame = trial.broadcast(number)
            received = trial.read(site.answer(frame), frame)
            assert all(torch.isfinite(value).all() for value in received.reply.update.values())
            server.complete_round(number, [trial.number], {trial.number: received.reply})
    assert trial.ledger.filter.spent.total() == ROUNDS


@pytest.mark.parametrize("method", ["aqc", "cgm-median"])
def test_methods_with_further_releases_through_the_wire(tmp_path, method):
    trial = make_trial(tmp_path, heart_plan(method=method))
    with Site(trial.settings) as site:
        frame = trial.broadcast(0)
        answer = site.answer(frame)
        assert trial.read(answer, frame).reply.released
        assert site.answer(frame) == answer
