"""Flower's simulation on Ray, with clients that train by Opacus."""

import os

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray listens on the loopback, and nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

import ctypes
import functools
import importlib
import json
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import BOUND, LR, NOISE, Work, asked, tell

warnings.filterwarnings("ignore")
# Opacus sends every logger to the console.
logging.getLogger("flwr").setLevel(logging.ERROR)
# The clients' processes read this file, too: each has one core.
torch.set_num_threads(1)


class Batched(TensorDataset):
    """Records that are fetched a batch at a time, which is faster than one by one."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[indices] for tensor in self.tensors)


@functools.cache
def records(path: str) -> list[Batched]:
    """Each client's records, read once in each process."""
    with np.load(path) as file:
        inputs, labels, owner = file["inputs"], file["labels"], file["owner"]
    return [
        Batched(*(torch.from_numpy(values[owner == client]) for values in (inputs, labels)))
        for client in range(int(owner.max()) + 1)
    ]


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One participation of one client."""
    config = message.content["config"]
    work = Work(**json.loads(str(config["work"])))
    own = records(str(config["path"]))[int(context.node_config["partition-id"])]
    model = work.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        data_loader=DataLoader(own, batch_size=work.batch, shuffle=True, collate_fn=tuple),
        noise_multiplier=NOISE,
        max_grad_norm=BOUND,
        poisson_sampling=False,
    )
    loss, steps = nn.CrossEntropyLoss(), 0
    for _ in range(work.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss(private(inputs), labels).backward()
            optimizer.step()
            steps += 1
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(own), "steps": steps}),
        }
    )
    return Message(content=content, reply_to=message)


class Counting(FedAvg):
    """Averaging that counts what clients did, and stops at the first that failed."""

    def __init__(self, work: Work) -> None:
        super().__init__(
            fraction_train=work.per_round / work.clients,
            min_train_nodes=work.per_round,
            min_available_nodes=work.clients,
            fraction_evaluate=0.0,
        )
        self.asked = work.per_round
        self.steps = 0
        self.ends: list[float] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """The mean of the models."""
        found = list(replies)
        failed = [reply.error.reason for reply in found if reply.has_error()]
        if failed or len(found) != self.asked:
            raise RuntimeError(f"{len(found)} replies, {len(failed)} failures: {failed[:1]}")
        self.steps += sum(int(reply.content["metrics"]["steps"]) for reply in found)
        combined = super().aggregate_train(server_round, found)
        self.ends.append(time.perf_counter())
        return combined


def main() -> None:
    """Run its simulation."""
    path, work = asked()
    # Ray's processes look for modules in this one's folder first.
    os.chdir(Path(__file__).parent)
    initial = work.network().state_dict()
    strategy = Counting(work)
    server_app = ServerApp()
    final: list[ArrayRecord] = []

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        config = ConfigRecord({"path": str(path), "work": json.dumps(vars(work))})
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial),
            num_rounds=work.rounds,
            train_config=config,
        )
        final.append(result.arrays)

    # A short name: Ray's sockets live below it.
    home = tempfile.mkdtemp(prefix="fl")
    os.environ["FLWR_HOME"] = f"{home}/flwr"
    import ray

    psutil = importlib.import_module("psutil")  # Ray's own, found once Ray is there
    # Ray's processes outlive it for a while; as this one's children they can be waited for.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    started = time.perf_counter()
    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=work.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": os.cpu_count(),
                    "num_gpus": 0,
                    "include_dashboard": False,
                    "log_to_driver": False,
                    "logging_level": "ERROR",
                    "_node_ip_address": "127.0.0.1",
                    "_temp_dir": home,
                },
            },
        )
        seconds = time.perf_counter() - started
    finally:
        children = psutil.Process().children(recursive=True)
        ray.shutdown()
        for process in psutil.wait_procs(children, timeout=30)[1]:
            process.kill()
        shutil.rmtree(home, ignore_errors=True)
    after = final[0].to_torch_state_dict()
    if all(torch.equal(initial[name], value) for name, value in after.items()):
        raise SystemExit("the model did not move")
    ends = [end - started for end in strategy.ends]
    later = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 0.0
    tell(seconds=seconds, steps=strategy.steps, later_round=later)


if __name__ == "__main__":
    # Under its own name, so that Ray's processes read this file once and not at every call.
    importlib.import_module(Path(__file__).stem).main()
