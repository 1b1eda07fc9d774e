"""The arms of a comparison: a label, and one outcome for each seed.

All arms share an experiment, so that their numbers may stand side by side.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pacdp.errors import InputError
from pacdp.experiments import RunResult
from pacdp.federation import Plan
from pacdp.formatting import terms
from pacdp.stats import SampleStats

Arms = Mapping[str, Sequence[RunResult]]


def checked(arms: Arms) -> Arms:
    """The arms, if there are any and an ε, a score and a client mean the same in all of them.

    >>> checked({})
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: arms: there are none, must be at least one
    """
    if not arms:
        raise InputError("arms: there are none, must be at least one")
    first = ""
    for label, outcomes in arms.items():
        if not outcomes:
            raise InputError(f"arm {label}: has no outcome, must have one for each seed")
        for outcome in outcomes:
            if (shared := _shared(outcome)) != (first := first or shared):
                raise InputError(
                    f"arm {label}: is of another experiment ({shared}), must be that of the first "
                    f"({first})"
                )
    return arms


def _shared(outcome: RunResult) -> str:
    """What must be the same for numbers to be compared."""
    plan = outcome.plan
    return (
        f"{plan.data}, {plan.task}, {len(plan.clients)} clients, "
        f"δ = {plan.privacy.delta:g}, {plan.privacy.adjacency} of a {plan.unit}"
    )


def arms_of(outcomes: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """RunResults by method, seeds within; settings are named where one method has several.

    A run that comes twice is refused: it would count as a seed of its own.
    """
    groups: dict[str, list[RunResult]] = {}
    settings: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for outcome in outcomes:
        if outcome.plan.run in seen:
            raise InputError(f"run {outcome.plan.run}: comes twice, must come once")
        seen.add(outcome.plan.run)
        found = _settings(outcome)
        key = repr(sorted(found.items()))
        settings[key] = found
        groups.setdefault(key, []).append(outcome)
    labels = {key: _label(key, settings) for key in groups}
    made = {labels[key]: sorted(groups[key], key=lambda one: one.plan.seed) for key in groups}
    checked(made)
    return made


def _settings(outcome: RunResult) -> dict[str, str]:
    """All that can tell two arms apart, as flat names; a seed cannot."""
    plan = outcome.plan.model_dump(mode="json", exclude={"seed", "clients", "again"})
    plan["settings"] = {**plan["settings"]}
    if isinstance(plan["settings"].get("curve"), dict):
        plan["settings"]["curve"] = {**plan["settings"]["curve"], "evidence": None}
    return dict(_flat("", plan))


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return
    for key, inner in value.items():
        # A method's settings are its own: they need no longer name.
        yield from _flat(key if name in ("", "settings") else f"{name}.{key}", inner)


def _label(key: str, settings: Mapping[str, Mapping[str, str]]) -> str:
    """The method, with those settings in which it differs from its namesakes."""
    own = settings[key]
    same = [other for other in settings.values() if other["method"] == own["method"]]
    differ = [
        name
        for name in sorted({name for other in same for name in other})
        if len({other.get(name) for other in same}) > 1
    ]
    parts = [f"{name} = {own[name]}" for name in differ if name in own]
    return f"{own['method']} ({'; '.join(parts)})" if parts else own["method"]


def metric_of(arms: Arms) -> str:
    """The headline metric of the task."""
    return next(iter(arms.values()))[0].plan.task.metric


def chance_of(arms: Arms) -> float | None:
    """The headline metric of the best constant prediction, if the task has such a baseline."""
    return next(iter(arms.values()))[0].chance


def over_rounds(outcomes: Sequence[RunResult], metric: str) -> dict[int, SampleStats]:
    """Mean and deviation over seeds, for the rounds that were evaluated."""
    found: dict[int, list[float]] = {}
    for outcome in outcomes:
        for row in outcome.history:
            if metric in row.metrics:
                found.setdefault(row.round, []).append(row.metrics[metric])
    return {number: SampleStats.of(found[number]) for number in sorted(found)}


def finals(outcomes: Sequence[RunResult], metric: str) -> dict[int, float]:
    """The final score of each seed; one that diverged has no loss, and is left out."""
    return {
        outcome.seed: outcome.metrics[metric] for outcome in outcomes if metric in outcome.metrics
    }


def by_level(outcomes: Sequence[RunResult]) -> dict[float, list[float]]:
    """The accuracies of each budget level over seeds; empty without budgets."""
    found: dict[float, list[float]] = {}
    for outcome in outcomes:
        for budget, accuracy in outcome.accuracy_by_budget.items():
            found.setdefault(budget, []).append(accuracy)
    return {budget: found[budget] for budget in sorted(found)}


def terms_of(plan: Plan) -> str:
    """What stands beside every ε of a plan."""
    return terms(plan.privacy.delta, plan.privacy.adjacency, plan.unit)
