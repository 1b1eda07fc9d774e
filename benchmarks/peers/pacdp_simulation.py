"""pacdp: clipped and noised, with every client's book."""

import time
from pathlib import Path

import numpy as np
import sklearn.metrics  # noqa: F401  (an import, and so not counted)
import torch
from work import BOUND, LR, asked, tell

from pacdp.data import Dataset, Partition, Provenance, Records, partition_records
from pacdp.federation import (
    Model,
    Optimiser,
    Population,
    Privacy,
    Recipe,
    Training,
    make_plan,
    simulate,
)
from pacdp.methods import build_method
from pacdp.tasks import Classification


def peak() -> float:
    """The most memory so far. Unlike getrusage, this starts anew with the program."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Plan and simulate."""
    path, work = asked()
    with np.load(path) as file:
        records = Records(
            features=file["inputs"], labels=file["labels"], clients=file["owner"].astype(np.int64)
        )
    # As many test records as one client has: evaluated once, at the end.
    test = records.take(np.arange(work.records))
    data = Dataset(
        name="random",
        train=records,
        test=test,
        task=Classification(work.classes),
        clients=tuple(str(number) for number in range(work.clients)),
        provenance=Provenance(source="random numbers", licence="none"),
    )
    split: Partition = partition_records(data, "natural")
    started = time.perf_counter()
    recipe = Recipe(
        model=Model(name=work.model),
        training=Training(
            rounds=work.rounds,
            clients_per_round=work.per_round,
            local_epochs=work.epochs,
            batch=work.batch,
            optimiser=Optimiser(lr=LR),
        ),
        privacy=Privacy(epsilon=5.0),
    )
    chosen = build_method("fixed", {"clipping_bound": BOUND})
    plan = make_plan(recipe, chosen, Population.of(data, split), seed=0)
    result = simulate(plan, data, split, evaluate_every=work.rounds)
    seconds = time.perf_counter() - started
    steps = sum(
        plan.clients[number].steps for t in range(plan.rounds) for number in plan.participants(t)
    )
    tell(
        seconds=seconds,
        steps=steps,
        answered=sum(row.answered for row in result.history),
        megabytes=peak(),
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
