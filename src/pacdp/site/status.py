"""The state of a site for its owner: budget, spent, rounds and refusals."""

from pathlib import Path
from typing import Any

from pacdp.errors import InputError
from pacdp.federation.wire import Kind, frame_kind, plan_digest
from pacdp.privacy import RoundRecord, SQLiteLedger
from pacdp.site.head_file import HeadFile
from pacdp.site.plans import find_client, read_plan
from pacdp.site.refusal_counts import RefusalCounts
from pacdp.site.settings import SiteSettings
from pacdp.sockets import is_listening


def read_status(settings: SiteSettings) -> dict[str, Any]:
    """Return the state as plain values; it disturbs a running site in no way."""
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
        "levels": [
            {"epsilon": epsilon, "spent": level.realised.epsilon}
            for epsilon, level in zip(state.levels, state.by_level, strict=False)
        ],
        "refusals": dict(RefusalCounts.beside(settings.ledger).by_code),
        "head": ledger.head,
        "head_file": _compare_head(settings.head, ledger),
    }


def _describe_plan(settings: SiteSettings, ledger: SQLiteLedger) -> dict[str, Any]:
    """Return what is known of the plan and its rounds; only the accepted one counts."""
    try:
        plan = read_plan(settings.plan, settings)
        number = find_client(plan, settings.client)
    except Exception as error:  # shown to the owner, whatever is wrong with the file
        return {"accepted": False, "error": " ".join(str(error).split())}
    rounds = {key[1]: record for key, record in ledger.rounds.items() if key[0] == plan.run}
    answered = sorted(n for n, record in rounds.items() if record.reply is not None)
    digest = plan_digest(plan, settings.modules)
    return {
        "accepted": digest == settings.accepted,
        "run": plan.run,
        "hash": digest,
        "rounds": plan.rounds,
        "participations": plan.clients[number].participations,
        "answered": len(answered),
        "last_round": answered[-1] + 1 if answered else None,
        "unanswered": [n + 1 for n, record in sorted(rounds.items()) if record.reply is None],
        "lost": [n + 1 for n in answered if _is_lost(ledger, rounds[n])],
    }


def _is_lost(ledger: SQLiteLedger, record: RoundRecord) -> bool:
    """Whether a round was paid for, and its answer is gone or could not be computed."""
    content = ledger.read_reply(record.request)
    return content is None or frame_kind(content) is Kind.REFUSAL


def _compare_head(path: Path, ledger: SQLiteLedger) -> str:
    """Say how the ledger compares with the head on the other medium."""
    try:
        head = HeadFile(path).read()
    except InputError:
        return "missing"
    return "known" if head in {entry.hash for entry in ledger.entries} else "stale"
