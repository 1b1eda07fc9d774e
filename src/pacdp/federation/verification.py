"""Verifying a plan from another party: it must be consistent with its own settings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pacdp.errors import DataError, PacdpError
from pacdp.federation.plan import Plan
from pacdp.federation.planning import make_plan
from pacdp.federation.population import Population

# Calibration is numerical, and other libraries or processors round differently. A ledger charges
# for the noise that is used, so a difference of this size cannot exceed a budget.
_TOLERANCE = 1e-9


def reconstruct_population(plan: Plan) -> Population:
    """Return the public facts about the clients from which a plan was made.

    >>> from pacdp.federation import Recipe, Training
    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> population = Population(sizes={"north": 200}, shape=(13,), task=Classification(2))
    >>> recipe = Recipe(training=Training(rounds=10, local_epochs=1))
    >>> reconstruct_population(make_plan(recipe, build_method("fixed"), population)) == population
    True
    """
    declared = plan.privacy.records
    budgets = None
    if declared is not None and declared.shares is None and plan.algorithm.private:
        budgets = {
            client.name: {level.epsilon: level.units for level in client.levels}
            for client in plan.clients
        }
    return Population(
        sizes={client.name: client.records for client in plan.clients},
        shape=plan.shape,
        task=plan.task,
        unit=plan.unit,
        units=None
        if plan.unit == "record"
        else {client.name: client.units for client in plan.clients},
        data=plan.data,
        budgets=budgets,
    )


def verify_plan(plan: Plan) -> None:
    """Recompute the plan from its recipe, method, clients and seed; refuse it if it differs.

    This ensures that noise, releases, sampling rates, divisors and budgets are those that the
    settings imply, so that none of them has to be trusted.
    """
    if len({client.name for client in plan.clients}) != len(plan.clients):
        raise DataError("plan: two clients have the same name")
    try:
        again = make_plan(
            plan.recipe,
            plan.algorithm,
            reconstruct_population(plan),
            plan.seed,
            provenance=plan.provenance,
            tuning=plan.tuning,
            again=plan.again,
        )
    except PacdpError as error:
        raise DataError(f"plan: cannot be recomputed from its settings ({error})") from error
    difference = _find_difference(plan.model_dump(mode="json"), again.model_dump(mode="json"))
    if difference is not None:
        raise DataError(f"plan: {difference} is not what its settings imply")


def _find_difference(given: Any, made: Any, where: str = "") -> str | None:
    """Return where two plain values differ by more than rounding; None if they do not."""
    if isinstance(given, Mapping) and isinstance(made, Mapping):
        if set(given) != set(made):
            return f"{where}.{min(set(given) ^ set(made))}".lstrip(".")
        pairs = [(key, given[key], made[key]) for key in given]
    elif isinstance(given, Sequence) and isinstance(made, Sequence) and not isinstance(given, str):
        if len(given) != len(made):
            return where
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(given, made, strict=True))]
    else:
        close = (
            isinstance(given, float)
            and isinstance(made, float)
            and math.isclose(given, made, rel_tol=_TOLERANCE)
        )
        return None if close or (type(given) is type(made) and given == made) else where
    differences = (_find_difference(a, b, f"{where}.{key}".lstrip(".")) for key, a, b in pairs)
    return next((found for found in differences if found is not None), None)
