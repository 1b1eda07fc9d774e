"""Whole federations whose processes are killed: the model is that of an undisturbed run."""

import os
import socket
from pathlib import Path

import pytest

from tests.deployment.soak import create, disturb, equals_simulation, start, verify

ROUNDS = 20
KINDS = {
    "direct": ["site", "coordinator", "relay", "site", "coordinator"],
    "flower": ["supernode", "site", "coordinator", "superlink", "site"],
}


def free_ports(count):
    """The first of so many consecutive ports that are free."""
    for first in range(22000 + os.getpid() % 5000, 60000, count):
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")


@pytest.mark.parametrize("transport", KINDS)
def test_kills_change_nothing(tmp_path, transport):
    if transport == "flower" and not Path(os.environ.get("PACDP_FLOWER_ENV", "/-")).is_dir():
        pytest.skip("PACDP_FLOWER_ENV names no environment with Flower")
    options = ("--rounds", ROUNDS, "--port", free_ports(8), "--minimum", 4, "--interval", 0.25)
    folder = create(tmp_path / "f", *options)
    process = start(folder, transport=transport, seeded=True)
    try:
        killed = disturb(folder, process, KINDS[transport], seed=1, patience=900)
        assert process.wait(1200) == 0
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)
    assert killed == KINDS[transport]
    assert equals_simulation(folder)
    state = verify(folder)
    assert state["agree"]
    for site in state["sites"].values():
        assert site["debited"] == site["answered"] == site["delivered"] == ROUNDS
        assert site["spent"]["epsilon"] <= site["budget"]["epsilon"]
