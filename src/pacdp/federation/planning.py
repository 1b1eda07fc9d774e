"""Planning a training from public information only."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pacdp.arithmetic import ARITHMETIC
from pacdp.clipping.numerics import BLOCK, check_clipping_bound, shrink_levels
from pacdp.errors import InputError
from pacdp.federation.budgets import assign_budgets
from pacdp.federation.configuration import Privacy, Recipe
from pacdp.federation.plan import Plan
from pacdp.federation.population import Population, count_levels
from pacdp.methods import (
    CalibrationRequest,
    ClientPlan,
    LevelPlan,
    Method,
    ReleaseSpec,
    name_of,
)
from pacdp.privacy import Adjacency, Scope


def make_plan(
    recipe: Recipe,
    method: Method,
    population: Population,
    seed: int = 0,
    *,
    provenance: dict[str, str] | None = None,
    tuning: dict[str, Any] | None = None,
    again: str = "",
) -> Plan:
    """Decide everything about a training before any private record is read.

    ``again`` is any word that distinguishes a second run of the same plan from the first where both
    draw on the same ledgers.

    >>> from pacdp.federation import Training
    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> plan = make_plan(
    ...     Recipe(
    ...         training=Training(rounds=10, local_epochs=5, batch=16),
    ...         privacy=Privacy(epsilon=(0.5, 0.1)),
    ...     ),
    ...     build_method("fixed"),
    ...     Population(sizes={"north": 200, "south": 50}, shape=(13,), task=Classification(2)),
    ... )
    >>> [(c.batches, c.releases, round(c.noise_multiplier, 2)) for c in plan.clients]
    [(13, 50, 49.72), (4, 50, 217.43)]
    """
    training, privacy, sizes = recipe.training, recipe.privacy, population.sizes
    if not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed}: must be a whole number from 0 to 2^63 - 1")
    participations = training.client_sampling(len(sizes)).max_participations
    budgets = assign_budgets(privacy.epsilon, len(sizes), seed)
    units_of = population.units or sizes
    for name, records in sizes.items():
        if not 1 <= units_of[name] <= records:
            raise InputError(
                f"client {name}: has {records} records of {units_of[name]} units, must have at "
                "least one of each"
            )
    caps = method.budgets(budgets)
    all_levels = [
        _plan_levels(privacy, population, name, units_of[name], cap) if method.private else ()
        for name, cap in zip(sizes, caps, strict=True)
    ]
    used = [_used_budgets(method, levels) for levels in all_levels]
    # With levels, the noise is calibrated to the largest that is used by any record.
    calibrated = [
        max((e for e, level in zip(own, levels, strict=True) if level.units), default=cap)
        for own, levels, cap in zip(used, all_levels, caps, strict=True)
    ]
    clients = []
    for number, (name, records) in enumerate(sizes.items()):
        units, levels, epsilon = units_of[name], all_levels[number], calibrated[number]
        if not epsilon:
            raise InputError(f"client {name}: {method.name} leaves out all of its records")
        batches = 1 if training.batch == "full" else math.ceil(units / training.batch)
        steps = training.local_steps or batches * (training.local_epochs or 1)
        specs = method.specify_releases(
            CalibrationRequest(
                epsilon=epsilon,
                delta=privacy.delta,
                adjacency=Adjacency.parse(privacy.adjacency),
                accountant=privacy.accountant,
                scope=Scope.parse(privacy.scope),
                participations=participations,
                passes=math.ceil(steps / batches),
                steps=steps,
                records=units,
                budgets=calibrated,
                levels=used[number],
            )
        )
        if privacy.spending.policy != "even" and method.private:
            _require_movable_budget(privacy, method, specs)
        for round_ in range(training.rounds) if specs else ():
            # Checked now, because a client would find out only after it has paid.
            bound = method.bound(epsilon, round=round_, rounds=training.rounds)
            check_clipping_bound(f"clipping bound of {name}", bound)
        effective = _effective_units(units, levels, specs)
        if not effective:
            raise InputError(f"client {name}: {method.name} leaves out all of its records")
        clients.append(
            ClientPlan(
                name=name,
                records=records,
                units=units,
                budget=budgets[number] if method.private else None,
                epsilon=epsilon,
                participations=participations,
                batches=batches,
                steps=steps,
                divisor=method.divisor(effective / batches, specs, effective),
                charges=tuple(specs),
                levels=levels,
            )
        )
    plan = Plan(
        **vars(recipe.recipe),
        arithmetic=ARITHMETIC,
        data=population.data,
        shape=population.shape,
        task=population.task,
        provenance=provenance or {},
        tuning=tuning,
        method=name_of(method),
        settings=method.model_dump(mode="json"),
        seed=seed,
        unit=population.unit,
        again=again,
        clients=tuple(clients),
    )
    method.check_plan(plan.terms)
    return plan


def _plan_levels(
    privacy: Privacy, population: Population, name: str, units: int, cap: float
) -> tuple[LevelPlan, ...]:
    """Return the budget levels of a client; none where all records have the client's budget."""
    declared = privacy.records
    if population.budgets is not None and (declared is None or declared.shares is not None):
        # Training would spend more than some records allow.
        raise InputError(
            "privacy.records: the records have budgets of their own; must list their levels, "
            "without shares (pacdp data check shows them)"
        )
    if declared is None:
        return ()
    if declared.shares is not None:
        counts = declared.counts(units)
    else:
        counts = count_levels(declared, population, name)
    return tuple(
        LevelPlan(epsilon=epsilon, budget=min(epsilon, cap), units=count)
        for epsilon, count in zip(declared.levels, counts, strict=True)
    )


def _used_budgets(method: Method, levels: Sequence[LevelPlan]) -> list[float]:
    """Return the ε that a method uses of each budget level; empty without levels."""
    if not levels:
        return []
    return method.level_budgets(
        [level.budget for level in levels], [level.units for level in levels]
    )


def _effective_units(
    units: int, levels: Sequence[LevelPlan], specs: Sequence[ReleaseSpec]
) -> float:
    """Return the number of units; with levels, each counted by its share of a contribution.

    That is its clipping bound over the largest, times the sampling rate of its level.
    """
    if not (specs and specs[0].levels):
        return units
    _require_distinguishable(levels, specs[0].ratios)
    return sum(
        terms.ratio * terms.sampling_rate * level.units
        for terms, level in zip(specs[0].levels, levels, strict=True)
    )


def _require_distinguishable(levels: Sequence[LevelPlan], bounds: Sequence[float]) -> None:
    """Refuse levels so far apart that rounding would leave nothing of the smallest."""
    # The most that rounding can take: a whole block, or sums over positions.
    limits = shrink_levels(np.array(1.0), np.array(bounds), BLOCK, positions=True)
    for level, bound, limit in zip(levels, bounds, limits, strict=True):
        if bound and not limit:
            raise InputError(
                f"privacy.records: ε = {level.budget:g} is too small beside "
                f"ε = {max(level.budget for level in levels):g}: rounding errors would exceed what "
                "its records may contribute; use levels that are closer together"
            )


def _require_movable_budget(privacy: Privacy, method: Method, specs: Sequence[ReleaseSpec]) -> None:
    """Refuse uneven spending where the accounting covers only even spending."""
    where = f"spending = {privacy.spending.policy}: must be even"
    if any(spec.sampled for spec in specs):
        raise InputError(f"{where} for {method.name}, whose sampled releases are frozen as a whole")
    if privacy.scope != "total" or method.label:
        raise InputError(f"{where} where a budget does not cover the whole training")
