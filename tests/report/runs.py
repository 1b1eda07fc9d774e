"""Outcomes that tests look at: made once, small, and changed where a test wants something odd."""

from functools import cache

from pacdp.experiments import Outcome, prepare, read_experiment
from pacdp.experiments.execute import execute


@cache
def outcome(method="pac-dp", seed=0, changes=()):
    experiment = read_experiment("heart-personalised", profile="smoke", changes=list(changes))
    prepared = prepare(experiment, method=experiment.made_method(method), seed=seed)
    return Outcome.of(prepared, execute(prepared))


def arms(*methods, seeds=2):
    return {method: [outcome(method, seed) for seed in range(seeds)] for method in methods}


def renamed(one, name):
    """The outcome, its first client under another name."""
    first, *others = one.plan.clients
    clients = (first.model_copy(update={"name": name}), *others)
    plan = one.plan.model_copy(update={"clients": clients})
    told, *rest = one.result["clients"]
    result = {**one.result, "clients": [{**told, "id": name}, *rest]}
    return Outcome(plan=plan, rows=one.rows, result=result)
