"""A coordinator, as a real process at a real socket."""

import json
import random
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from pacdp.coordinator import Coordinator, RunLog
from pacdp.coordinator.server import LoggedServer
from pacdp.errors import DataError, InputError
from pacdp.experiments.results import RunResult
from pacdp.federation import LocalModel, Reply
from pacdp.federation.wire import Wire
from pacdp.relay_protocol import RelayRequest, RoundState
from tests.cli.command import run
from tests.coordinator.trial import coordinating, exchange, make_federation, open_sites, relay
from tests.site.trial import ROUNDS, heart_plan


def check_run(federation, *, rounds=ROUNDS):
    """Ledgers, log and results agree."""
    result = RunResult.load(federation.folder / "results", for_inference=True)
    again = Coordinator(federation.settings).replay()
    saved = load_file(federation.folder / "results" / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in again.weights.items())
    for trial, client in zip(federation.trials, result.clients, strict=True):
        assert trial.ledger.filter.spent.total() == client.releases
        assert trial.ledger.filter.realised.epsilon == pytest.approx(client.epsilon_spent)
        assert len(trial.ledger.rounds) == rounds
    return result


@pytest.mark.parametrize("method", ["fixed", "aqc", "nbafl"])
def test_a_run_ends_with_results(tmp_path, method):
    plan = heart_plan(method=method, training={"upload": "coarse"})
    federation = make_federation(tmp_path, plan)
    assert federation.status["state"] == "not started"
    with open_sites(federation) as sites, coordinating(federation) as process:
        state = relay(federation, lambda name, frame: sites[name].answer(frame))
        assert state.state == "ended"
        assert process.wait(30) == 0
        out = process.stdout.read()
    assert f"round {ROUNDS} of {ROUNDS}: 4 of 4 replied, accuracy" in out
    result, coordinator = check_run(federation), Coordinator(federation.settings)
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.traffic.answers == result.traffic.broadcasts == 4 * ROUNDS
    assert result.total_bytes == sum(
        len(content)
        for number in range(ROUNDS)
        for content in (
            *[coordinator.log.find_broadcast(number)] * 4,
            *coordinator.log.answers(number).values(),
        )
    )
    status = federation.status
    assert (status["state"], status["closed"], status["running"]) == ("ended", ROUNDS, False)
    assert status["sites"]["cleveland"] == {"replies": ROUNDS, "refusals": {}}
    assert len(status["history"]) == ROUNDS
    # A run that has ended is not run again.
    with coordinating(federation) as process:
        assert exchange(federation, None)[0].state == "ended"
        assert process.wait(30) == 0
    assert check_run(federation).to_json() == result.to_json()


def test_a_killed_coordinator_goes_on(tmp_path):
    federation, random_numbers = make_federation(tmp_path), random.Random(7)
    frames = {}
    with open_sites(federation) as sites:

        def answer(name, frame):
            content = sites[name].answer(frame)
            # The same bytes for a round, however often the coordinator was killed.
            assert frames.setdefault((name, frame), content) == content
            return content

        for _ in range(5):
            patience = iter(range(random_numbers.randrange(1, 6)))
            with coordinating(federation):
                relay(federation, answer, until=lambda _, left=patience: next(left, None) is None)
        with coordinating(federation) as process:
            assert relay(federation, answer).state == "ended"
            assert process.wait(30) == 0
    assert len({frame for _, frame in frames}) <= ROUNDS
    check_run(federation)


def test_a_stopped_coordinator_says_so_and_goes_on(tmp_path):
    federation = make_federation(tmp_path)
    with open_sites(federation) as sites:
        with coordinating(federation) as process:
            relay(
                federation,
                lambda name, frame: sites[name].answer(frame),
                until=lambda state: state.round == 2,
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 143
            assert "stopped in round 3; start it again to resume" in process.stderr.read()
        assert federation.status["closed"] == 2
        with coordinating(federation):
            assert exchange(federation, None)[0].round == 2


def test_what_is_no_answer_changes_nothing(tmp_path):
    federation = make_federation(tmp_path)
    with open_sites(federation) as sites, coordinating(federation):
        state, frame = exchange(federation, None)
        names = federation.names
        assert (state.round, list(state.sites)) == (0, names)
        answer = sites[names[0]].answer(frame)
        for request in (
            (0, names[0], b""),
            (0, names[0], b"PACDP"),
            (0, names[1], answer),
            (1, names[0], answer),
            (0, "nobody", answer),
            (0, names[0], answer[:-1] + bytes([answer[-1] ^ 1])),
        ):
            assert exchange(federation, *request)[0].sites == tuple(names)
        assert exchange(federation, 0, names[0], answer)[0].sites == tuple(names[1:])
        # Not a second time either.
        assert exchange(federation, 0, names[0], answer)[0].sites == tuple(names[1:])


def test_stragglers_are_not_waited_for(tmp_path):
    federation = make_federation(tmp_path, minimum=3, deadline=0.3)

    with open_sites(federation) as sites, coordinating(federation) as process:
        absent = federation.names[3]

        def partial(name, frame):
            if name == absent:
                raise LookupError
            return sites[name].answer(frame)

        assert relay(federation, partial).state == "ended"
        assert process.wait(30) == 0
    result = RunResult.load(federation.folder / "results")
    assert [client.failed for client in result.clients] == [0, 0, 0, ROUNDS]
    assert federation.status["sites"][absent]["replies"] == 0


def test_a_round_waits_for_its_minimum(tmp_path):
    federation = make_federation(tmp_path, deadline=0.05)
    with open_sites(federation) as sites, coordinating(federation):
        state, frame = exchange(federation, None)
        first = federation.names[0]
        exchange(federation, 0, first, sites[first].answer(frame))
        time.sleep(0.2)
        state, _ = exchange(federation, None)
        assert (state.state, state.round, len(state.sites)) == ("open", 0, 3)


def test_a_run_without_enough_replies_fails(tmp_path):
    federation = make_federation(tmp_path)
    # One hospital has spent its budget elsewhere.
    spent, plan = federation.trials[1], federation.plan
    for _ in range(plan.clients[1].participations):
        spent.ledger.reserve(*plan.planned_releases(1), run="another")
    with open_sites(federation) as sites, coordinating(federation) as process:
        state = relay(federation, lambda name, frame: sites[name].answer(frame))
        assert state.state == "failed"
        assert process.wait(30) == 1
        assert "3 of 4 sites replied, 4 needed; the others refused: budget" in (
            process.stderr.read()
        )
    status = federation.status
    assert status["state"] == "failed"
    assert "round 1" in status["failure"]
    # With a smaller minimum the same run goes on.
    text = federation.toml.read_text()
    federation.toml.write_text(text.replace("minimum = 4", "minimum = 3"))
    with open_sites(federation) as sites, coordinating(federation) as process:
        assert relay(federation, lambda name, frame: sites[name].answer(frame)).state == "ended"
    assert federation.status["sites"][federation.names[1]]["refusals"] == {"budget": ROUNDS}


def test_nearly_infinite_updates_do_not_end_the_run(tmp_path):
    plan = heart_plan()
    local_model = LocalModel(plan)
    log = RunLog(tmp_path / "run.db", run=plan.run, digest="0" * 64)
    initial = local_model.state()
    server = LoggedServer(Wire.for_model(local_model), initial, log, sign=bytes, rounds=1)
    for number in (3.4e38, -3.4e38):
        huge, usual = (
            {name: torch.full_like(value, each) for name, value in initial.items()}
            for each in (number, 1.0)
        )
        server.combine([Reply(0, 0, huge), Reply(1, 0, usual)])
        assert server.spoiled == [0]
    assert all(torch.isfinite(value).all() for value in server.model.values())


def test_one_coordinator_for_a_log(tmp_path):
    federation = make_federation(tmp_path)
    with coordinating(federation):
        answer = run("federation", "serve", "--settings", federation.toml, code=2)
    assert "another coordinator uses this log" in answer.stderr


def test_a_log_of_another_plan_is_refused(tmp_path):
    federation = make_federation(tmp_path)
    Coordinator(federation.settings)
    heart_plan(rounds=3).save(tmp_path / "plan.json")
    with pytest.raises(DataError, match="is the log of another plan"):
        Coordinator(federation.settings)


def test_a_changed_log_is_found(tmp_path):
    federation = make_federation(tmp_path)
    with open_sites(federation) as sites, coordinating(federation):
        relay(federation, lambda name, frame: sites[name].answer(frame))
    coordinator = Coordinator(federation.settings)
    with coordinator.log._open() as database:
        first = coordinator.log.find_broadcast(0)
        database.execute("UPDATE broadcasts SET frame = ? WHERE round = 2", (first,))
    with pytest.raises(DataError, match="the broadcast of round 3 does not follow"):
        coordinator.replay()


def test_wrong_settings_are_refused(tmp_path):
    federation = make_federation(tmp_path)
    text = federation.toml.read_text()
    name = federation.names[0]
    for change, message in (
        ((f"{name} = ", "nobody = "), "sites.nobody: is not a client of the plan"),
        ((f"{name} = ", "# "), f"sites.{name}: is missing"),
        (("minimum = 4", "minimum = 0"), "minimum = 0: "),
        (("log = ", "logs = "), "logs: is no setting; did you mean log?"),
    ):
        federation.toml.write_text(text.replace(*change))
        answer = run("federation", "serve", "--settings", federation.toml, code=2)
        assert message in answer.stderr
    assert not (tmp_path / "run.db").exists()


def test_messages_of_a_relay():
    for message in (b"", b"\0\0\0\1", b"\0\0\0\2[]", RoundState("open", 1).encode()):
        with pytest.raises(InputError, match="relay"):
            RelayRequest.decode(message)
    header = json.dumps({"round": True, "site": 3}).encode()
    with pytest.raises(InputError, match="relay"):
        RelayRequest.decode(len(header).to_bytes(4) + header)
