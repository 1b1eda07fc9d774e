"""Results that tests look at: made once, small, and changed where a test wants something odd."""

from functools import cache

from pacdp.experiments import RunResult, prepare_run, read_experiment
from pacdp.experiments.execute import simulate_run
from pacdp.reporting import Comparison


@cache
def run_result(method="pac-dp", seed=0, changes=(), name="heart-personalised"):
    experiment = read_experiment(name, profile="smoke", changes=list(changes))
    prepared = prepare_run(experiment, method=experiment.build_method(method), seed=seed)
    return RunResult.of(prepared, simulate_run(prepared))


def compared(*methods, seeds=2):
    return Comparison(
        {method: [run_result(method, seed) for seed in range(seeds)] for method in methods}
    )


def renamed(one, name):
    """The result, its first client under another name."""
    first, *others = one.plan.clients
    clients = (first.model_copy(update={"name": name}), *others)
    plan = one.plan.model_copy(update={"clients": clients})
    told, *rest = one.clients
    return one.model_copy(
        update={"plan": plan, "clients": (told.model_copy(update={"name": name}), *rest)}
    )
