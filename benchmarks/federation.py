"""Rows 3 and 5: federated rounds against other simulators, and how ours grows.

Every simulator is a program in a process of its own, given the same records and the same work
(:mod:`benchmarks.peers.work`), and the programs take turns. The peers need versions of packages
that are not ours: each has an environment below ``build/peers``, made when it is first needed.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.harness import Row, versions
from benchmarks.peers.work import Work

PROGRAMS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path("build/peers")
PEERS = {"flower": "flower_opacus.py", "pfl": "pfl_averaging.py"}
OURS = "pacdp_simulation.py"

LOGISTIC = Work(
    model="logistic", clients=50, records=32, per_round=50, rounds=10, batch=16, epochs=1
)
CNN = Work(model="cnn", clients=50, records=1280, per_round=25, rounds=3, batch=128, epochs=1)
PAPER = Work(model="cnn", clients=50, records=1200, per_round=25, rounds=1, batch=128, epochs=5)
REPEATS = 3
GROWTH = (10, 100, 1_000, 10_000)


def rows() -> Iterator[Row]:
    """Against Flower with Opacus and against pfl, and against ourselves."""
    yield from _against("flower", LOGISTIC, goal=50.0, name="Flower's simulation with Opacus")
    yield from _against("flower", CNN, goal=2.5, name="Flower's simulation with Opacus")
    yield from _against("pfl", CNN, goal=1.2, name="pfl-research without any DP")
    yield _paper()
    yield from _growth()


def _against(peer: str, work: Work, *, goal: float, name: str) -> Iterator[Row]:
    python = _environment(peer)
    if python is None:
        return
    mine, theirs = _in_turns([(sys.executable, OURS), (str(python), PEERS[peer])], work)
    ours, other = (_median(found, "seconds") for found in (mine, theirs))
    details = {"seconds_pacdp": ours, "seconds_peer": other, "local_steps": float(work.steps)}
    if "later_round" in theirs[0]:
        details["seconds_peer_later_round"] = _median(theirs, "later_round")
        details["seconds_pacdp_a_round"] = ours / work.rounds
    yield Row(
        row=3,
        work=f"federated rounds: {_described(work)}",
        against=f"{name}, start-up included",
        ratio=other / ours,
        goal=f">= {goal:g}x faster",
        holds=other / ours >= goal,
        versions=versions("pacdp", "torch", "numpy") | _pinned(peer),
        details=details,
    )


def _paper() -> Row:
    ((*found,),) = _in_turns([(sys.executable, OURS)], PAPER)
    seconds = _median(found, "seconds")
    return Row(
        row=3,
        work=f"a round of the paper's MNIST setting: {_described(PAPER)}",
        against="15 seconds",
        ratio=seconds / 15,
        goal="<= 1x",
        holds=seconds <= 15,
        versions=versions("pacdp", "torch", "numpy"),
        details={"seconds": seconds, "threads": float(found[0]["threads"])},
    )


def _growth() -> Iterator[Row]:
    """Time with everybody in each round, and memory with ten in each."""
    seconds, megabytes = {}, {}
    for clients in GROWTH:
        ((*found,),) = _in_turns([(sys.executable, OURS)], _growing(clients, clients))
        seconds[clients] = _median(found, "seconds")
        ((*found,),) = _in_turns([(sys.executable, OURS)], _growing(clients, 10))
        megabytes[clients] = _median(found, "megabytes")
    # With ten clients most of the time goes elsewhere.
    most, fewest, *counted = GROWTH[-1], GROWTH[0], *GROWTH[1:]
    power = float(
        np.polyfit(np.log(counted), [np.log(seconds[clients]) for clients in counted], 1)[0]
    )
    yield Row(
        row=5,
        work=f"growth: time grows as clients^x up to {most:,}, all in each of 5 rounds, logistic",
        against="itself; the ratio is x",
        ratio=power,
        goal="<= 1.1: linear",
        holds=power <= 1.1,
        versions=versions("pacdp", "torch", "numpy"),
        details={f"seconds_{clients}_clients": value for clients, value in seconds.items()},
    )
    memory = megabytes[most] / megabytes[fewest]
    yield Row(
        row=5,
        work=f"growth: peak memory with {most:,} clients of 20 records, 10 in each round, logistic",
        against=f"itself with {fewest:,} clients, 10 in each round",
        ratio=memory,
        goal="<= 1.25x: flat",
        holds=memory <= 1.25,
        versions=versions("pacdp", "torch", "numpy"),
        details={f"megabytes_{clients}_clients": value for clients, value in megabytes.items()},
    )


def _growing(clients: int, per_round: int) -> Work:
    return Work(
        model="logistic",
        clients=clients,
        records=20,
        per_round=per_round,
        rounds=5,
        batch=20,
        epochs=1,
    )


def _described(work: Work) -> str:
    return (
        f"{work.model}, {work.clients} clients of {work.records} records, {work.per_round} a "
        f"round, {work.rounds} rounds, B = {work.batch}, {work.epochs} local epochs"
    )


def _in_turns(programs: list[tuple[str, str]], work: Work) -> list[list[dict[str, Any]]]:
    """What each program found, run in turns on the same records."""
    found: list[list[dict[str, Any]]] = [[] for _ in programs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.npz"
        work.write(path)
        for _ in range(REPEATS):
            for (python, program), results in zip(programs, found, strict=True):
                done = subprocess.run(
                    [python, str(PROGRAMS / program), str(path), *work.arguments],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(f"{program}: {done.stderr[-2000:]}")
                result = json.loads(done.stdout.splitlines()[-1])
                if result["steps"] != work.steps:
                    raise RuntimeError(
                        f"{program}: made {result['steps']} local steps, must make {work.steps}"
                    )
                results.append(result)
    return found


def _median(found: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(result[name]) for result in found)


def _environment(peer: str) -> Path | None:
    """The peer's own Python, made if it is not there; None where it cannot be had."""
    folder = ENVIRONMENTS.absolute() / peer
    python, ready = folder / "bin" / "python", folder / ".installed"
    wanted = (PROGRAMS / f"{peer}.txt").read_text()
    if ready.exists() and ready.read_text() == wanted:
        return python
    console = Console(stderr=True)
    console.print(f"making the environment of {peer} in {folder} (a minute, 1.5 GB)")
    venv.create(folder, clear=True, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-qq", "-r", PROGRAMS / f"{peer}.txt"], check=False
    )
    if done.returncode:
        console.print(f"{peer}: could not be installed; it is not measured", style="red")
        return None
    ready.write_text(wanted)
    return python


def _pinned(peer: str) -> dict[str, str]:
    """The versions of a peer's packages that matter."""
    lines = (PROGRAMS / f"{peer}.txt").read_text().split()
    pinned = dict(line.split("==") for line in lines)
    return {name: pinned[name] for name in ("flwr", "ray", "opacus", "pfl") if name in pinned}
