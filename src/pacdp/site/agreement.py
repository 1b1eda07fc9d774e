"""What the owner of a site agrees to by accepting a plan, in plain language."""

from bisect import bisect_left
from collections.abc import Mapping

from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation import LocalModel, Plan
from pacdp.federation.wire import plan_digest
from pacdp.formatting import format_count
from pacdp.privacy import Filter, SQLiteLedger

_NEIGHBOURS = {
    "zero-out": "one {unit} of yours, present or replaced by an empty one (zero-out)",
    "replace-one": "one {unit} of yours, replaced by any other (replace-one)",
}


def describe_agreement(
    plan: Plan, client: int, ledger: SQLiteLedger, modules: Mapping[str, str]
) -> dict[str, str]:
    """Return the terms of a plan for one client, by topic.

    Whoever makes a plan chooses the names in it. Control characters, such as line breaks and
    terminal escapes, are escaped, so that no name can pass for another topic.
    """
    rows = _describe_topics(plan, client, ledger, modules)
    return {topic: _escape_controls(text) for topic, text in rows.items()}


def _escape_controls(text: str) -> str:
    """Return a text with all unprintable characters escaped.

    >>> _escape_controls("heart\\x1b[8m\\nprivacy: ε = 0")
    'heart\\\\x1b[8m\\\\nprivacy: ε = 0'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _describe_topics(
    plan: Plan, client: int, ledger: SQLiteLedger, modules: Mapping[str, str]
) -> dict[str, str]:
    client_plan, unit = plan.clients[client], plan.unit
    planned = plan.planned_guarantee(client)
    weights = LocalModel(plan).coordinates
    # Under replanning more rounds may be answered than are planned, with more noise.
    most = plan.max_releases(client)
    rows = {
        "plan": f"{plan.run}; SHA-256 of plan, plug-ins and version: {plan_digest(plan, modules)}",
        "you are": f"{client_plan.name}, one of {format_count(len(plan.clients), 'client')}, with "
        + format_count(client_plan.records, "record")
        + ("" if unit == "record" else f" of {format_count(client_plan.units, unit)}"),
        "model": f"{plan.model.name} with {weights:,} weights, by {plan.method}, on {plan.data}",
        "rounds": f"{plan.rounds}; you answer at most {most // client_plan.each} of them, each "
        "once",
        "releases": f"a {unit} contributes to at most {most} noisy results, {client_plan.each} in "
        "each round that you answer",
        "privacy": f"{planned} after all of them: this bounds what all your answers together "
        f"reveal about a {unit}",
        "adjacency": _NEIGHBOURS[plan.privacy.adjacency].format(unit=unit),
    }
    if plan.label:
        rows["caution"] = (
            f"the requested ε ({client_plan.budget:g}) does not cover the whole training "
            f"({plan.label}); the ε above does"
        )
    rows |= _describe_levels(plan, client)
    rows |= {
        "your ledger": f"budget {ledger.filter.budget}; spent so far "
        f"ε = {ledger.filter.charged.epsilon:.6g}; " + _describe_rest(plan, client, ledger),
        "the server sees": f"in each round that you answer: an update of {weights:,} weights, with "
        "noise added here; the scale of that noise; the head of your ledger; and whether you "
        "answered, or one of a few fixed codes if you refused",
        "others see": "the joint model: all clients, and anyone to whom the server gives it",
        "already public": "your name, your number of "
        + ("records" if unit == "record" else f"records and {unit}s")
        + (", how many have each budget" if client_plan.levels else "")
        + ", your budget, and the rounds in which you are asked",
        "nobody sees": "your records, their gradients, or anything without noise; the noise comes "
        "from this machine's operating system",
        "not covered": "that you take part at all, and what you publish elsewhere",
        "plug-ins": ", ".join(f"{name} (SHA-256 {digest})" for name, digest in modules.items())
        + (": their code runs here and can read everything" if modules else "none"),
    }
    return rows


def _describe_levels(plan: Plan, client: int) -> dict[str, str]:
    client_plan, declared = plan.clients[client], plan.privacy.records
    if not client_plan.levels or declared is None:
        return {}
    parts = [
        f"{format_count(level.units, plan.unit)} with ε = {level.budget:g}, of which the training "
        f"costs {cost:.6g}"
        for level, cost in zip(client_plan.levels, plan.level_costs(client), strict=True)
    ]
    drawn = (
        ""
        if declared.shares is None
        else "; they are assigned at random from the plan's seed, as in a simulation, and not "
        "read from your records"
    )
    return {"budget levels": "; ".join(parts) + drawn}


def count_affordable(plan: Plan, client: int, ledger: SQLiteLedger) -> int:
    """Return how many more rounds of the plan the budget covers, if spending is even."""
    return bisect_left(
        range(1, _count_open(plan, client, ledger) + 1),
        True,
        key=lambda rounds: not _can_pay(ledger.filter, plan, client, rounds),
    )


def _describe_rest(plan: Plan, client: int, ledger: SQLiteLedger) -> str:
    """Describe whether the remaining budget covers the remaining training."""
    rounds = _count_open(plan, client, ledger)
    which = "whole" if rounds == plan.clients[client].participations else "rest of the"
    if not _can_pay(ledger.filter, plan, client, rounds):
        return (
            f"the remainder does not cover the {which} training: once it is spent, this site "
            "refuses further rounds"
        )
    return f"the remainder covers the {which} training"


def _count_open(plan: Plan, client: int, ledger: SQLiteLedger) -> int:
    """Return how many planned rounds have not been debited yet."""
    paid = sum(run == plan.run for run, _ in ledger.rounds)
    return max(0, plan.clients[client].participations - paid)


def _can_pay(state: Filter, plan: Plan, client: int, rounds: int) -> bool:
    releases = plan.planned_releases(client)
    more = [release.times(release.count * rounds) for release in releases if rounds]
    try:
        for release in more:
            # A sampled plan is charged as a whole before its first release.
            if release.sampled and release.times(1) not in state.frozen:
                state = state.freeze(release)
        if more:
            state.spend(*more)
    except (BudgetExceededError, InputError):
        # A sampled plan needs a ledger without any releases.
        return False
    return True
