"""The same app in Flower's simulation; skipped unless Flower's environment also has Ray."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from pacdp.flower import bundle, commands
from pacdp.flower.environment import VARIABLE, is_ready
from tests.flower.loopback import Coordinator, Flower, SocketServer, wait_until

ENVIRONMENT = Path(os.environ.get(VARIABLE, "not set"))
pytestmark = pytest.mark.skipif(
    not is_ready(ENVIRONMENT) or not (ENVIRONMENT / "bin" / "ray").exists(),
    reason=f"{VARIABLE} names no environment with Flower and Ray",
)
SITES = ["north", "south"]


def test_the_app_finds_the_sites_of_its_partitions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    with ExitStack() as stack:
        for name in SITES:
            path = folder / "sites" / name / "site.sock"
            path.parent.mkdir(parents=True)
            answer = name.encode() + b" answers "
            server = SocketServer(path, lambda message, answer=answer: answer + message)
            stack.enter_context(server)
        coordinator = Coordinator(folder / "coordinator.sock", SITES, rounds=3)
        stack.enter_context(coordinator.server)
        flower = stack.enter_context(Flower(ENVIRONMENT, folder))
        bundle.write_app(folder / "app")
        flower.start_simulation()
        run = commands.run_command(
            ENVIRONMENT, home=flower.home, app=folder / "app", coordinator=coordinator.server.path
        )
        *arguments, settings = run.arguments
        settings += f" sites='{','.join(SITES)}' folder='{folder}'"
        nodes = ("--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
        flower.start("run", commands.Command((*arguments, settings, *nodes), run.variables))
        wait_until(coordinator.ended.is_set, 150)
        assert coordinator.answers[-1] == {
            name: name.encode() + b" answers " + coordinator.broadcast(3) for name in SITES
        }
