"""Real programs of Flower on the loopback interface, with TLS and node authentication.

Skipped unless the variable PACDP_FLOWER_ENV names an environment with Flower.
"""

import json
import os
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pacdp.flower import certificates
from pacdp.flower.environment import VARIABLE, is_ready
from tests.flower.loopback import Coordinator, Flower, SocketServer, wait_until

ENVIRONMENT = Path(os.environ.get(VARIABLE, "not set"))
pytestmark = pytest.mark.skipif(
    not is_ready(ENVIRONMENT), reason=f"{VARIABLE} names no environment with Flower"
)
SITES = ["north", "south"]


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """Start a SuperLink, its SuperExec and the SuperNodes of two sites.

    The first node starts the app itself; for the second one a SuperExec of its own does.
    """
    folder = tmp_path_factory.mktemp("f")
    with Flower(ENVIRONMENT, folder) as flower:
        flower.create_files()
        flower.start_superlink()
        flower.register(*SITES)
        flower.start_superexec()
        flower.start_supernode("north", folder / "north.sock")
        flower.start_supernode("south", folder / "south.sock", separate=True)
        yield flower


@pytest.fixture(scope="module")
def refused(flower):
    """Start SuperNodes that must be refused, while the others work."""
    folder = flower.folder
    certificates.create_authority(folder / "other.crt", folder / "other.key")
    with Flower(ENVIRONMENT, folder / "expired") as expired:
        expired.folder.mkdir()
        expired.authority, expired.authority_key = flower.authority, flower.authority_key
        certificates.issue_server_certificate(
            expired.certificate,
            expired.key,
            authority=flower.authority,
            authority_key=flower.authority_key,
            days=30,
            start=datetime.now(UTC) - timedelta(days=60),
        )
        certificates.create_secret(expired.secret)
        expired.start_superlink()
        path = folder / "refused.sock"
        flower.start_supernode("unregistered", path)
        flower.start_supernode("wrong-authority", path, authority=folder / "other.crt")
        flower.start_supernode("expired", path, address=expired.address)
        yield ["unregistered", "wrong-authority", "expired"]


class Stubborn(Coordinator):
    """A coordinator that does not take the first answer of a site in the second round."""

    refused = False

    def accept(self, site: str, answer: bytes) -> bool:
        if len(self.answers) == 2 and site == "south" and not self.refused:
            self.refused = True
            return False
        return True


def test_rounds_go_through_whatever_is_restarted(flower, refused):
    folder = flower.folder
    asked: dict[str, list[bytes]] = {site: [] for site in [*SITES, "refused"]}

    def site(name: str) -> SocketServer:
        def answer(message: bytes) -> bytes:
            asked[name].append(message)
            return name.encode() + b" answers " + message

        return SocketServer(folder / f"{name}.sock", answer)

    coordinator = Stubborn(folder / "coordinator.sock", SITES, rounds=3)
    with ExitStack() as stack:
        for name in ("north", "refused"):
            stack.enter_context(site(name))
        # The site "south" is started late: until then its node has nothing to answer.
        threading.Timer(20.0, lambda: stack.enter_context(site("south"))).start()
        with coordinator.server:
            flower.start_run(coordinator.server.path)
            wait_until(lambda: len(coordinator.answers) == 2, 120)
        # The coordinator is away for a while in the second round.
        time.sleep(3)
        flower.kill("north", 15)
        flower.start_supernode("north", folder / "north.sock")
        with coordinator.server:
            wait_until(coordinator.ended.is_set, 180)
            for number, answers in enumerate(coordinator.answers, start=1):
                assert answers == {
                    name: name.encode() + b" answers " + coordinator.broadcast(number)
                    for name in SITES
                }
            wait_until(lambda: read_status(flower) == "finished:completed", 30)
    assert asked["refused"] == []
    assert set(asked["south"]) == {coordinator.broadcast(number) for number in range(1, 4)}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unregistered", "Failed to initialize the connection"),
        ("wrong-authority", "CERTIFICATE_VERIFY_FAILED"),
        ("expired", "certificate has expired"),
    ],
)
def test_a_node_that_must_not_take_part_gives_up(flower, refused, name, reason):
    assert flower.processes[name].wait(60) != 0
    assert reason in flower.log(name)


def test_plain_http_is_not_answered(flower):
    with socket.create_connection(("127.0.0.1", flower.port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not connection.recv(100).startswith(b"HTTP")


def test_the_superlink_gives_no_app_to_a_superexec_with_another_secret(flower, tmp_path):
    certificates.create_secret(tmp_path / "secret")
    flower.start_superexec("intruder", tmp_path / "secret")
    # It ends without a word, and with success.
    assert flower.processes["intruder"].wait(60) == 0
    assert flower.processes["superexec"].poll() is None


def read_status(flower: Flower) -> str:
    """Return the status of the only run."""
    result = subprocess.run(
        [flower.environment / "bin" / "flwr", "ls", "federation", "--format", "json"],
        env={**os.environ, "FLWR_HOME": str(flower.home), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)["runs"][0]["status"]
