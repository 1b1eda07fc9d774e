"""Simulate prepared runs."""

from collections.abc import Sequence

from pacdp.experiments.prepare import PreparedRun
from pacdp.federation import Checkpoint, LocalModel, Result, simulate
from pacdp.federation.engines.base import choose_engine
from pacdp.federation.simulation import Observer
from pacdp.privacy import Ledger


def simulate_run(
    prepared: PreparedRun,
    *,
    observe: Observer | None = None,
    ledgers: Sequence[Ledger | None] | None = None,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    engine: str = "auto",
) -> Result:
    """Simulate all rounds of a prepared run."""
    return simulate(
        prepared.plan,
        prepared.dataset,
        prepared.partition,
        initial=prepared.initial,
        ledgers=ledgers,
        failure_rate=prepared.experiment.failure_rate,
        evaluate_every=prepared.experiment.evaluate_every,
        on_round=observe,
        checkpoint=checkpoint,
        device=device,
        engine=engine,
    )


def refuse_engine(prepared: PreparedRun, engine: str, *, device: str = "cpu") -> None:
    """Refuse an engine that cannot train the plan, before anything is written."""
    local_model = LocalModel(prepared.plan, device=device)
    choose_engine(engine, local_model)
