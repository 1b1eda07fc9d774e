"""The summary at the top of a report: the setting, the best results, and what ε guarantees."""

from collections.abc import Sequence
from dataclasses import dataclass

from pacdp.experiments import RunResult
from pacdp.formatting import format_count, format_score
from pacdp.reporting.comparison import Comparison, format_epsilons

# Categories of privacy guarantee. Only methods of the same category are compared.
WITHIN_BUDGET = "within the budgets"
AFTER_PRETRAINING = "within the budgets, after public pre-training"
OVER_BUDGET = "at more than the budgets"
NOT_PRIVATE = "without any guarantee"
GUARANTEES = (WITHIN_BUDGET, AFTER_PRETRAINING, OVER_BUDGET, NOT_PRIVATE)


@dataclass(frozen=True)
class Fact:
    """A named value with a note below it."""

    name: str
    value: str
    note: str = ""


def list_facts(comparison: Comparison) -> list[Fact]:
    """List the key figures, beginning with the best result in each category of guarantee."""
    plan, metric, baseline = comparison.plan, comparison.metric, comparison.baseline
    seeds = sorted({result.seed for results in comparison.groups.values() for result in results})
    pick = max if plan.task.higher_is_better else min
    facts = []
    for guarantee in GUARANTEES:
        means = {
            label: stats.mean
            for label, results in comparison.groups.items()
            if _guarantee(results) == guarantee and (stats := comparison.final_stats(label))
        }
        if means:
            best = pick(means, key=lambda label: means[label])
            name = f"{'best ' if len(means) > 1 else ''}{metric} {guarantee}"
            facts.append(Fact(name, format_score(means[best], metric), best))
    if baseline is not None:
        facts.append(Fact("chance", format_score(baseline, metric), "the best constant prediction"))
    records = sum(client.records for client in plan.clients)
    return [
        *facts,
        Fact("clients", str(len(plan.clients)), f"{records:,} records"),
        Fact("seeds", str(len(seeds)), ", ".join(map(str, seeds[:8])) + "…" * (len(seeds) > 8)),
        Fact("model", plan.model.name, format_count(plan.rounds, "round")),
        Fact("privacy", plan.privacy.adjacency, f"δ = {plan.privacy.delta:g}"),
    ]


def _guarantee(results: Sequence[RunResult]) -> str:
    plan = results[0].plan
    if not plan.algorithm.private:
        return NOT_PRIVATE
    if plan.label:
        return OVER_BUDGET
    return WITHIN_BUDGET if plan.track == "private-only" else AFTER_PRETRAINING


def explain_results(comparison: Comparison) -> list[str]:
    """Explain what ε guarantees, what it does not cover, and what public records contributed."""
    plan, metric, groups = comparison.plan, comparison.metric, comparison.groups
    not_private = [label for label, results in groups.items() if _guarantee(results) == NOT_PRIVATE]
    sentences = []
    if len(not_private) < len(groups):
        unit = f"one {plan.unit}"
        other = "a null one" if plan.privacy.adjacency == "zero-out" else "any other"
        sentences.append(
            f"A client's spent ε bounds what everything it sent reveals about {unit} of its "
            f"data: if {unit} is replaced by {other}, no outcome becomes more than e^ε times as "
            f"likely, except with probability δ = {plan.privacy.delta:g} "
            f"({plan.privacy.adjacency})."
        )
        if plan.privacy.records is not None:
            sentences.append(
                f"Each {plan.unit} has its own budget, at one of "
                f"{format_count(len(plan.privacy.records.levels), 'level')}, capped by its "
                f"client's budget; a client's ε is the largest of its {plan.unit}s. The level of a "
                f"{plan.unit} is the same in both data sets that are compared, so no ε hides it: "
                "choosing a budget must not itself be the secret."
            )
    if not_private:
        sentences.append(
            f"{', '.join(not_private)}: no guarantee and no ε; it shows what privacy costs."
        )
    if len(not_private) < len(groups):
        sentences.append(
            "In a simulation the noise is generated from the seed and protects nobody; it comes "
            "from the operating system where clients have durable ledgers."
        )
    sentences.append(f"The {metric} is measured on test records, which are not covered by any ε.")
    for label in groups:
        if before := comparison.initial_stats(label):
            final = comparison.final_stats(label)
            reached = "no finite score" if final is None else format_score(final.mean, metric)
            sentences.append(
                f"{label}: public records alone bring the initial model to "
                f"{format_score(before.mean, metric)}; training with the clients ends at {reached}."
            )
    return sentences


def list_warnings(comparison: Comparison, label: str) -> list[str]:
    """Return a warning if the spent ε of a method's runs is not its budget."""
    results = comparison.groups[label]
    reason = next((result.plan.label for result in results if result.plan.label), "")
    if not reason:
        return []
    return [
        f"{label if reason == label else f'{label} ({reason})'}: the budget is NOT what the whole "
        f"run certifies. Budget ε {format_epsilons(results, 'epsilon_budget')}, spent ε "
        f"{format_epsilons(results, 'epsilon_spent')} ({comparison.terms})."
    ]


def describe_comparison(comparison: Comparison) -> str:
    """Return the line below the title."""
    plan, groups = comparison.plan, comparison.groups
    methods = f"{len(groups)} methods" if len(groups) > 1 else next(iter(groups))
    return (
        f"{plan.data}: {methods}, {format_count(len(plan.clients), 'client')}, "
        f"{format_count(plan.rounds, 'round')}; every ε at {comparison.terms}"
    )
