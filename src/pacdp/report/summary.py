"""The first lines of a page: what was trained, what came of it, and what ε promises."""

from collections.abc import Sequence
from dataclasses import dataclass

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.formatting import counted, least_middle_most, score
from pacdp.report.comparison import Arms, chance_of, finals, metric_of, terms_of
from pacdp.stats import SampleStats

KINDS = (
    "within the budgets",
    "within the budgets, after public pre-training",
    "at more than the budgets",
    "without any guarantee",
)


@dataclass(frozen=True)
class Fact:
    """A number with its name, and a few words below."""

    name: str
    value: str
    note: str = ""


def facts(arms: Arms) -> list[Fact]:
    """What a reader wants to know first."""
    plan, metric, chance = next(iter(arms.values()))[0].plan, metric_of(arms), chance_of(arms)
    seeds = sorted({outcome.plan.seed for outcomes in arms.values() for outcome in outcomes})
    means = {
        label: SampleStats.of(list(found.values())).mean
        for label, outcomes in arms.items()
        if (found := finals(outcomes, metric))
    }
    shown = []
    for kind in KINDS:
        candidates = {label: mean for label, mean in means.items() if _kind(arms[label]) == kind}
        if candidates:
            pick = max if plan.task.higher_is_better else min
            best = pick(candidates, key=lambda label: candidates[label])
            name = f"{'best ' if len(candidates) > 1 else ''}{metric} {kind}"
            shown.append(Fact(name, score(candidates[best], metric), best))
    if chance is not None:
        shown.append(Fact("chance", score(chance, metric), "always the most frequent class"))
    records = sum(client.records for client in plan.clients)
    return [
        *shown,
        Fact("clients", str(len(plan.clients)), f"{records:,} records"),
        Fact("seeds", str(len(seeds)), ", ".join(map(str, seeds[:8])) + "…" * (len(seeds) > 8)),
        Fact("model", plan.model.name, counted(plan.rounds, "round")),
        Fact("privacy", plan.privacy.adjacency, f"δ = {plan.privacy.delta:g}"),
    ]


def _kind(outcomes: Sequence[RunResult]) -> str:
    """What the budgets of an arm are worth."""
    if not _private(outcomes):
        return KINDS[3]
    if outcomes[0].plan.label:
        return KINDS[2]
    return KINDS[0] if outcomes[0].plan.track == "private-only" else KINDS[1]


def _private(outcomes: Sequence[RunResult]) -> bool:
    return outcomes[0].plan.algorithm.private


def sentences(arms: Arms) -> list[str]:
    """What ε promises, and what it does not cover."""
    plan, metric = next(iter(arms.values()))[0].plan, metric_of(arms)
    unit = f"one {plan.unit}"
    other = "by a null one" if plan.privacy.adjacency == "zero-out" else "by any other"
    said = []
    if any(_private(outcomes) for outcomes in arms.values()):
        said.append(
            f"A client's certified ε bounds what everything it sent can tell about {unit} of it: "
            f"if {unit} is replaced {other}, no outcome becomes more than e^ε times as likely, but "
            f"for a probability of δ = {plan.privacy.delta:g} ({plan.privacy.adjacency})."
        )
    without = [label for label, outcomes in arms.items() if not _private(outcomes)]
    if without:
        said.append(f"{', '.join(without)}: no guarantee, and no ε. It shows what privacy costs.")
    said.append(
        f"{'Accuracy' if metric == 'accuracy' else f'The {metric}'} is measured on test records, "
        "which are covered by no ε."
    )
    for label, outcomes in arms.items():
        told = [outcome.before_private_data for outcome in outcomes]
        held = [one[metric] for one in told if one and metric in one]
        if held:
            reached = list(finals(outcomes, metric).values())
            after = score(SampleStats.of(reached).mean, metric) if reached else "nothing finite"
            said.append(
                f"{label}: public records alone bring the first model to "
                f"{score(SampleStats.of(held).mean, metric)}; with the clients it ends at {after}."
            )
    return said


def warnings(arms: Arms) -> list[str]:
    """Where a budget is not what the whole run certifies."""
    said = []
    for label, outcomes in arms.items():
        mark = next((outcome.plan.label for outcome in outcomes if outcome.plan.label), "")
        if not mark:
            continue
        asked, certified = (
            least_middle_most(collect_epsilons(outcomes, field))
            for field in ("epsilon_budget", "epsilon_spent")
        )
        said.append(
            f"{label if mark == label else f'{label} ({mark})'}: the budget is NOT what the whole "
            f"run certifies. Budget ε {asked}, certified ε {certified} ("
            f"{terms_of(outcomes[0].plan)})."
        )
    return said


def lead(arms: Arms) -> str:
    """One line below the title."""
    plan = next(iter(arms.values()))[0].plan
    methods = f"{len(arms)} methods" if len(arms) > 1 else next(iter(arms))
    return (
        f"{plan.data}: {methods}, {counted(len(plan.clients), 'client')}, "
        f"{counted(plan.rounds, 'round')}; every ε at {terms_of(plan)}"
    )
