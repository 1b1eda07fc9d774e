"""Running an experiment, and what came of it in one object."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pacdp.experiments.cost import bytes_per_round, signal_to_noise
from pacdp.experiments.prepare import Prepared
from pacdp.federation import Checkpoint, Result, Workbench, simulate
from pacdp.federation.engines.base import EngineName, choose_engine
from pacdp.federation.evaluation import accuracy_by_budget
from pacdp.federation.simulation import Observer
from pacdp.privacy import Book


def execute(
    prepared: Prepared,
    *,
    observe: Observer | None = None,
    books: Sequence[Book | None] | None = None,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    engine: EngineName = "auto",
) -> Result:
    """Run what was prepared."""
    return simulate(
        prepared.plan,
        prepared.dataset,
        prepared.partition,
        initial=prepared.initial,
        books=books,
        failure_rate=prepared.experiment.failure_rate,
        evaluate_every=prepared.experiment.evaluate_every,
        observe=observe,
        checkpoint=checkpoint,
        device=device,
        engine=engine,
    )


def refuse_engine(prepared: Prepared, engine: str, *, device: str = "cpu") -> None:
    """Refuse an engine that does not fit the plan, before anything is written."""
    bench = Workbench(prepared.plan, device=device)
    choose_engine(engine, bench, make=lambda: Workbench(prepared.plan, device=device))


def summary(prepared: Prepared, result: Result, *, profile: str | None) -> dict[str, Any]:
    """One object that says what came of a run. What does not exist is null, never infinite."""
    plan = result.plan
    parameters = sum(value.numel() for value in result.model.values())
    ratios = signal_to_noise(plan, parameters)
    clients = [
        {**client, "signal_to_noise": ratio}
        for client, ratio in zip(result.clients(), ratios, strict=True)
    ]
    return {
        "experiment": prepared.experiment.name,
        "method": plan.method,
        "seed": plan.seed,
        "profile": profile,
        "accuracy": result.metrics.get("accuracy"),
        "metrics": dict(result.metrics),
        "before_private_data": prepared.before,
        "chance": result.chance,
        "rounds": plan.rounds,
        "seconds": result.seconds,
        "parameters": parameters,
        "bytes_per_round": bytes_per_round(plan, parameters),
        "accuracy_by_budget": {
            f"{budget:g}": accuracy
            for budget, accuracy in accuracy_by_budget(
                result.accuracies,
                [client["epsilon_budget"] for client in clients],
                _tested(prepared),
            ).items()
        },
        "clients": clients,
    }


def _tested(prepared: Prepared) -> list[int]:
    """The records that stand behind each client's accuracy."""
    holders = prepared.dataset.test.clients
    if prepared.partition.kind == "natural" and holders is not None:
        return np.bincount(holders, minlength=len(prepared.partition)).tolist()
    return prepared.partition.sizes.tolist()


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Mean and standard deviation (of the sample; 0 for one value).

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951)
        """
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), spread)


def epsilons(summaries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """All clients' ε of one kind over all runs; empty where there is none."""
    values = [client[name] for one in summaries for client in one["clients"]]
    return sorted(value for value in values if value is not None)
