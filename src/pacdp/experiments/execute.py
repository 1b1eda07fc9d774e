"""Running prepared experiments."""

from collections.abc import Callable, Sequence

from pacdp.experiments.prepare import Prepared
from pacdp.experiments.results import RunResult
from pacdp.federation import Checkpoint, LocalModel, Result, simulate
from pacdp.federation.engines.base import choose_engine
from pacdp.federation.simulation import Observer
from pacdp.privacy import Ledger


def execute(
    prepared: Prepared,
    *,
    observe: Observer | None = None,
    ledgers: Sequence[Ledger | None] | None = None,
    checkpoint: Checkpoint | None = None,
    device: str = "cpu",
    engine: str = "auto",
) -> Result:
    """Simulate a prepared experiment."""
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


def refuse_engine(prepared: Prepared, engine: str, *, device: str = "cpu") -> None:
    """Refuse an engine that does not fit the plan, before anything is written."""
    local_model = LocalModel(prepared.plan, device=device)
    choose_engine(engine, local_model)


def compare(
    make: Callable[[str, int], Prepared],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    profile: str | None = None,
    observe: Callable[[str, int], None] = lambda method, seed: None,
) -> dict[str, list[RunResult]]:
    """Run each method with each seed; ``make`` prepares a run, ``observe`` is told before it."""
    results: dict[str, list[RunResult]] = {method: [] for method in methods}
    for method in methods:
        for seed in seeds:
            observe(method, seed)
            prepared = make(method, seed)
            result = RunResult.of(prepared, execute(prepared), profile=profile)
            # A comparison shows scores: the models of all runs may not fit into memory.
            results[method].append(result.without_weights())
    return results
