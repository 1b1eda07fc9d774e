"""A real Ray cluster on this machine, and a worker that is killed."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pacdp.cluster import on_ray
from pacdp.data import load_proxy
from pacdp.federation import Model, Optimiser, Privacy, Training
from pacdp.offline import Grid
from pacdp.offline.grid import run_grid
from tests.plans import proxy_task_of

ray = pytest.importorskip("ray")
# Ray leaves files and processes to be closed when the interpreter ends.
pytestmark = pytest.mark.filterwarnings("ignore")

GRID = Grid((0.1, 1.0), (0.1, 1.0), (0, 1))


def proxy_task(rounds):
    return proxy_task_of(
        proxy=load_proxy("heart"),
        sizes={"a": 100, "b": 40},
        training=Training(rounds=rounds, local_epochs=1, batch=16, optimiser=Optimiser(lr=0.5)),
        model=Model(name="logistic"),
        privacy=Privacy(),
    )


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    yield
    ray.shutdown()


def training_workers():
    """The processes of this cluster that are training."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::_train"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_same_matrix_as_in_process():
    made = proxy_task(rounds=3)
    assert np.array_equal(
        run_grid(made, GRID).scores, run_grid(made, GRID, worker=on_ray("local")).scores
    )


def test_it_survives_a_killed_worker():
    made = proxy_task(rounds=150)
    killed = []

    def kill():
        for _ in range(600):
            workers = training_workers()
            if workers:
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])
                return
            time.sleep(0.05)

    watcher = threading.Thread(target=kill)
    watcher.start()
    found = run_grid(made, GRID, worker=on_ray("local"))
    watcher.join()
    assert killed
    assert np.array_equal(found.scores, run_grid(made, GRID).scores)
