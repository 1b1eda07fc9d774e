"""Training a grid on a Ray cluster, with retries if a worker dies.

A cell has the same score wherever it is trained, because all randomness comes from its seed.
"""

import socket
from collections.abc import Iterator, Sequence
from typing import Any

from pacdp.errors import InputError
from pacdp.offline.grid import Cell, Worker, train_in_process
from pacdp.offline.grid_simulation import can_stack_plan
from pacdp.offline.proxy_task import ProxyTask

# How often a task is repeated if its worker dies.
RETRIES = 3


def on_ray(address: str) -> Worker:
    """Return a worker for :func:`pacdp.offline.grid.run_grid` that trains on a cluster.

    ``local`` starts a cluster of this machine's cores for the duration of the grid; ``auto`` or
    ``host:port`` connects to a running one, on all machines of which this package is installed.

    >>> on_ray("local").__name__
    'train'
    """
    try:
        import ray
    except ImportError:
        raise InputError("--cluster: needs the package ray: pip install 'pacdp[ray]'") from None

    def train(proxy_task: ProxyTask, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        if not cells:
            return
        connect = not ray.is_initialized()
        if connect:
            _connect(ray, address)
        try:
            yield from _scores(ray, proxy_task, cells)
        finally:
            if connect:
                ray.shutdown()

    return train


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    try:
        # Tried first, because Ray waits for minutes and then ends the process.
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address, **quiet)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--cluster {address}: cannot be reached ({reason})") from None


def _scores(ray: Any, proxy_task: ProxyTask, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
    # Sent once instead of with every task.
    shared = ray.put(proxy_task)
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
    waiting = [task.remote(shared, part) for part in _split_cells(proxy_task, cells)]
    while waiting:
        done, waiting = ray.wait(waiting)
        for scores in ray.get(done):
            yield from scores


def _train(proxy_task: ProxyTask, cells: Sequence[Cell]) -> list[tuple[Cell, float]]:
    import torch

    # Ray runs one task per core.
    torch.set_num_threads(1)
    return list(train_in_process(proxy_task, cells))


def _split_cells(proxy_task: ProxyTask, cells: Sequence[Cell]) -> list[list[Cell]]:
    """Split cells into tasks: by seed where a seed is one program, otherwise one by one."""
    if not can_stack_plan(proxy_task.plan(1.0, 1.0, 0)):
        return [[cell] for cell in cells]
    seeds = sorted({cell.seed for cell in cells})
    return [[cell for cell in cells if cell.seed == seed] for seed in seeds]
