"""The status of a site for its owner: budget, spending, rounds and refusals."""

from pathlib import Path
from typing import Any

from pacdp.errors import InputError
from pacdp.federation.wire import Kind, frame_kind, plan_digest
from pacdp.privacy import Filter, RoundRecord, SQLiteLedger, mu_for
from pacdp.site.agreement import count_affordable, describe_agreement
from pacdp.site.head_file import HeadFile
from pacdp.site.plans import find_client, read_plan
from pacdp.site.refusal_counts import RefusalCounts
from pacdp.site.settings import SiteSettings
from pacdp.sockets import is_listening


def read_status(settings: SiteSettings) -> dict[str, Any]:
    """Return the status as plain values, without affecting a running site."""
    ledger = SQLiteLedger(settings.ledger)
    state = ledger.filter
    return {
        "client": settings.client,
        "running": is_listening(settings.socket),
        "plan": _describe_plan(settings, ledger),
        "budget": state.budget.to_dict(),
        "spent": state.realised.to_dict(),
        "charged": state.charged.to_dict(),
        "releases": state.spent.total(),
        "used": _used_share(state),
        "levels": [
            {
                "epsilon": epsilon,
                "budget": level.budget.epsilon,
                "spent": level.realised.epsilon,
                "used": _used_share(level),
            }
            for epsilon, level in zip(state.levels, state.by_level, strict=False)
        ],
        "refusals": dict(RefusalCounts.beside(settings.ledger).by_code),
        "entries": len(ledger.entries),
        "head": ledger.head,
        "head_file": _compare_head(settings.head, ledger),
    }


def _describe_plan(settings: SiteSettings, ledger: SQLiteLedger) -> dict[str, Any]:
    """Describe the plan, whether or not it is the accepted one, and its rounds."""
    try:
        plan = read_plan(settings.plan, settings)
        number = find_client(plan, settings.client)
    except Exception as error:  # shown to the owner, for any kind of error
        return {"accepted": False, "error": " ".join(str(error).split())}
    history = _list_rounds(ledger, plan.run)
    by_state = {
        state: [row["round"] for row in history if row["state"] == state]
        for state in ("answered", "lost", "unanswered")
    }
    answered = sorted(by_state["answered"] + by_state["lost"])
    digest = plan_digest(plan, settings.modules)
    return {
        "accepted": digest == settings.accepted,
        "run": plan.run,
        "hash": digest,
        "rounds": plan.rounds,
        "participations": plan.clients[number].participations,
        "answered": len(answered),
        "last_round": answered[-1] if answered else None,
        "unanswered": by_state["unanswered"],
        "lost": by_state["lost"],
        "left": count_affordable(plan, number, ledger),
        "history": history,
        "agreement": describe_agreement(plan, number, ledger, settings.modules),
    }


def _list_rounds(ledger: SQLiteLedger, run: str) -> list[dict[str, Any]]:
    """Return each debited round, counted from 1, with the times of its debit and its answer."""
    times = {
        (entry.content["round"], entry.kind): entry.content["time"]
        for entry in ledger.entries
        if entry.content.get("run") == run and "round" in entry.content
    }
    rows = []
    for (name, number), record in sorted(ledger.rounds.items()):
        if name == run:
            lost = record.reply is not None and _is_lost(ledger, record)
            state = "unanswered" if record.reply is None else "lost" if lost else "answered"
            rows.append(
                {
                    "round": number + 1,
                    "state": state,
                    "releases": sum(release.count for release in record.releases),
                    "debited": times[number, "release"],
                    "answered": times.get((number, "reply")),
                }
            )
    return rows


def _used_share(state: Filter) -> float:
    """Return the charged share of the budget, on a scale where equal releases cost the same.

    ε itself does not grow linearly; the square of μ does (:mod:`pacdp.privacy.gaussian`).
    """
    charged, budget = (
        float(mu_for(guarantee.epsilon, guarantee.delta)) if guarantee.epsilon > 0 else 0.0
        for guarantee in (state.charged, state.budget)
    )
    return min(1.0, (charged / budget) ** 2)


def _is_lost(ledger: SQLiteLedger, record: RoundRecord) -> bool:
    """Whether the reply to a debited round was lost or could not be computed."""
    content = ledger.read_reply(record.request)
    return content is None or frame_kind(content) is Kind.REFUSAL


def _compare_head(path: Path, ledger: SQLiteLedger) -> str:
    """Compare the ledger with the head on separate storage."""
    try:
        head = HeadFile(path).read()
    except InputError:
        return "missing"
    return "known" if head in {entry.hash for entry in ledger.entries} else "stale"
