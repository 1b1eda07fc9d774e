"""Stopped at any moment, even by kill -9, a run ends as if it had not been."""

import json
import signal
import subprocess
import time

import pytest
import torch

from pacdp.data import load_dataset, partition_records
from pacdp.errors import DataError, InputError
from pacdp.federation import (
    Aggregation,
    Checkpoint,
    Optimiser,
    Privacy,
    Training,
    simulate,
)
from pacdp.methods import METHODS, build_method
from pacdp.privacy import Adjacency, Guarantee, MemoryLedger
from tests.cli.command import COMMAND, refused, run
from tests.plans import plan_for

DATA = load_dataset("heart")
HOSPITALS = partition_records(DATA, "natural")
CURVE = {"curve": {"family": "power", "coefficients": [1.0, 0.4]}}


def plan(name="cgm-median", rounds=6, **server):
    return plan_for(
        DATA,
        HOSPITALS,
        method=build_method(name, CURVE if name == "pac-dp" else {}),
        training=Training(
            rounds=rounds,
            local_steps=2,
            clients_per_round=3,
            sampling="uniform",
            cap=0.5,
            optimiser=Optimiser(name="adam", lr=0.1),
        ),
        privacy=Privacy(epsilon=(0.5, 1.0, 2.0, 2.0)),
        server=Aggregation(**server),
    )


class StoppedError(Exception):
    """Something ended the process here."""


def stop_after(rounds):
    def observe(row):
        if row.round == rounds:
            raise StoppedError

    return observe


def same(one, other):
    assert all(torch.equal(one.model[name], other.model[name]) for name in one.model)
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert mine.model_copy(update={"seconds": 0.0}) == theirs.model_copy(
            update={"seconds": 0.0}
        )
    assert one.clients() == other.clients()
    assert one.metrics == other.metrics


@pytest.mark.parametrize("name", [name for name in METHODS if name != "rpdp-fl"])
def test_every_method_goes_on_where_it_stood(name, tmp_path):
    made = plan(name)
    whole = simulate(made, DATA, HOSPITALS, failure_rate=0.3)
    for rounds in (2, 5):
        checkpoint = Checkpoint(tmp_path / f"{rounds}.pt", run=made.run)
        settings = {"failure_rate": 0.3, "checkpoint": checkpoint}
        with pytest.raises(StoppedError):
            simulate(made, DATA, HOSPITALS, on_round=stop_after(rounds), **settings)
        same(simulate(made, DATA, HOSPITALS, **settings), whole)
        same(simulate(made, DATA, HOSPITALS, **settings), whole)  # nothing left to do


def test_sampled_plans_go_on_as_well(tmp_path):
    made = plan("rpdp-fl", rounds=3)
    checkpoint = Checkpoint(tmp_path / "c.pt", run=made.run)
    whole = simulate(made, DATA, HOSPITALS)
    with pytest.raises(StoppedError):
        simulate(made, DATA, HOSPITALS, on_round=stop_after(1), checkpoint=checkpoint)
    again = simulate(made, DATA, HOSPITALS, checkpoint=checkpoint)
    same(again, whole)
    assert [b.filter.frozen for b in again.ledgers] == [b.filter.frozen for b in whole.ledgers]


@pytest.mark.parametrize(
    "server",
    [{"optimiser": "momentum", "lr": 0.5}, {"optimiser": "adam", "lr": 0.1}, {"average_last": 0.8}],
)
def test_the_server_goes_on_where_it_stood(server, tmp_path):
    made = plan("fixed", **server)
    checkpoint = Checkpoint(tmp_path / "c.pt", run=made.run)
    with pytest.raises(StoppedError):
        simulate(made, DATA, HOSPITALS, on_round=stop_after(4), checkpoint=checkpoint)
    same(simulate(made, DATA, HOSPITALS, checkpoint=checkpoint), simulate(made, DATA, HOSPITALS))


def test_checkpoints_that_do_not_fit(tmp_path):
    path = tmp_path / "c.pt"
    one = plan("fixed")
    simulate(one, DATA, HOSPITALS, checkpoint=Checkpoint(path, run=one.run))
    other = plan("fixed", rounds=7)
    with pytest.raises(DataError, match="is of another plan"):
        simulate(other, DATA, HOSPITALS, checkpoint=Checkpoint(path, run=other.run))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"c.pt: is no checkpoint"):
        simulate(one, DATA, HOSPITALS, checkpoint=Checkpoint(path, run=one.run))
    ledgers = [MemoryLedger(Guarantee(epsilon=9.0, adjacency=Adjacency.ZERO_OUT)) for _ in range(4)]
    with pytest.raises(InputError, match="cannot be done again"):
        simulate(one, DATA, HOSPITALS, checkpoint=Checkpoint(path, run=one.run), ledgers=ledgers)


def test_kill_minus_nine(tmp_path):
    """The real command, killed in the middle of a round, twice."""
    arguments = [
        *("run", "heart-personalised", "--set", "training.rounds=60"),
        *("--set", "server.optimiser=momentum", "--method", "aqc", "--seed", "7"),
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(*arguments, "--out", whole)
    rows = killed / "metrics.jsonl"
    for reached in (5, 30):
        process = subprocess.Popen(
            [COMMAND, *arguments, "--out", killed, "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not rows.exists() or len(rows.read_text().splitlines()) < reached:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "result.json").exists()
    run(*arguments, "--out", killed, "--resume")
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, killed)]
    assert results[0]["clients"] == results[1]["clients"]
    counts = [len((f / "metrics.jsonl").read_text().splitlines()) for f in (whole, killed)]
    assert counts == [60, 60]
    other = [*arguments, "--set", "training.rounds=3", "--out", killed, "--resume"]
    assert "holds another plan" in refused(*other)
    slip = [*arguments, "--set", "failure_rate=0.4", "--out", killed, "--resume"]
    assert "holds another experiment" in refused(*slip)
