"""What the owner of a site agrees to by accepting a plan, in plain words."""

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
    """Return what is agreed to, by topic.

    Names in a plan are the choice of whoever made it. Characters that a terminal would obey, such
    as line breaks and escapes, are spelled out, so that no name can look like another topic.
    """
    rows = _describe_topics(plan, client, ledger, modules)
    return {topic: _spell_out(text) for topic, text in rows.items()}


def _spell_out(text: str) -> str:
    """Return a text in which every character is one that is seen.

    >>> _spell_out("heart\\x1b[8m\\nprivacy: ε = 0")
    'heart\\\\x1b[8m\\\\nprivacy: ε = 0'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _describe_topics(
    plan: Plan, client: int, ledger: SQLiteLedger, modules: Mapping[str, str]
) -> dict[str, str]:
    own, unit = plan.clients[client], plan.unit
    planned = plan.planned_guarantee(client)
    weights = LocalModel(plan).coordinates
    # Under replanning more rounds may be answered than are planned, with more noise.
    most = plan.max_releases(client)
    rows = {
        "plan": f"{plan.run}, with plug-ins and version SHA-256 {plan_digest(plan, modules)}",
        "you are": f"{own.name}, one of {format_count(len(plan.clients), 'client')}, with "
        + format_count(own.records, "record")
        + ("" if unit == "record" else f" of {format_count(own.units, unit)}"),
        "trained is": f"{plan.model.name} with {weights:,} weights, by {plan.method}, for "
        f"{plan.data}",
        "rounds": f"{plan.rounds}; you answer at most {most // own.each} of them, each once",
        "releases": f"a {unit} takes part in at most {most} noised results, {own.each} in "
        "each round that you answer",
        "privacy": f"{planned} after all of them: this is the most that all your answers together "
        f"reveal about a {unit}",
        "compared are": _NEIGHBOURS[plan.privacy.adjacency].format(unit=unit),
    }
    if plan.label:
        rows["caution"] = (
            f"the ε that was asked for ({own.budget:g}) does not cover the whole training "
            f"({plan.label}); the ε above does"
        )
    rows |= _describe_levels(plan, client)
    rows |= {
        "your ledger": f"budget {ledger.filter.budget}; spent so far "
        f"ε = {ledger.filter.charged.epsilon:.6g}; " + _describe_rest(plan, client, ledger),
        "the server sees": f"in each round that you answer: an update of {weights:,} weights, with "
        "noise added here; how much noise that is; the head of your ledger; that you answered, or "
        "one of a few fixed words if you refuse",
        "others see": "the joint model goes to all clients, and to whom the server likes",
        "public already": "your name, your number of "
        + ("records" if unit == "record" else f"records and {unit}s")
        + (", how many have which budget" if own.levels else "")
        + ", your budget, and in which rounds you are asked",
        "nobody sees": "your records, their gradients, or anything without noise; the noise comes "
        "from this machine's operating system",
        "not covered": "that you take part at all, and what you publish elsewhere",
        "plug-ins": ", ".join(f"{name} (SHA-256 {digest})" for name, digest in modules.items())
        + (": their code runs here and can read everything" if modules else "none"),
    }
    return rows


def _describe_levels(plan: Plan, client: int) -> dict[str, str]:
    own, declared = plan.clients[client], plan.privacy.records
    if not own.levels or declared is None:
        return {}
    parts = [
        f"{format_count(level.units, plan.unit)} with ε = {level.budget:g}, of which the training "
        f"costs {cost:.6g}"
        for level, cost in zip(own.levels, plan.level_costs(client), strict=True)
    ]
    drawn = (
        ""
        if declared.shares is None
        else "; which ones is drawn at random from the plan's seed, as in a simulation, and not "
        "read from your records"
    )
    return {"budget levels": "; ".join(parts) + drawn}


def count_affordable(plan: Plan, client: int, ledger: SQLiteLedger) -> int:
    """Return how many more rounds of the plan the ledger can pay, each with even noise."""
    return bisect_left(
        range(1, _count_open(plan, client, ledger) + 1),
        True,
        key=lambda rounds: not _can_pay(ledger.filter, plan, client, rounds),
    )


def _describe_rest(plan: Plan, client: int, ledger: SQLiteLedger) -> str:
    """Say whether the ledger has enough left for what is left of the training."""
    rounds = _count_open(plan, client, ledger)
    which = "whole" if rounds == plan.clients[client].participations else "rest of the"
    if not _can_pay(ledger.filter, plan, client, rounds):
        return (
            f"what is left is not enough for the {which} training: you will refuse once it is used"
        )
    return f"what is left is enough for the {which} training"


def _count_open(plan: Plan, client: int, ledger: SQLiteLedger) -> int:
    """Return how many rounds are planned and not debited yet."""
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
        # A sampled plan needs a ledger from which nothing was released yet.
        return False
    return True
