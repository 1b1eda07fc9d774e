"""The status of a site as one HTML page, for the owner's data-protection officer."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pacdp import __version__
from pacdp.federation.wire import Code
from pacdp.formatting import format_count, format_terms
from pacdp.reporting.templates import load_style, load_template
from pacdp.site.refusal_counts import MEANINGS

_STATES = {
    "answered": "answered",
    "lost": "paid, reply lost",
    "unanswered": "paid, not answered yet",
}
_HEADS = {
    "known": "The ledger contains the head on the separate storage, so it is not an older copy.",
    "missing": "The head on the separate storage cannot be read, so an older copy of the ledger "
    "would go unnoticed. The site does not start without it.",
    "stale": "The ledger does not contain the head on the separate storage: an older copy was "
    "restored. The site refuses everything until the newest ledger is restored.",
}


def render_site_page(state: Mapping[str, Any], *, time: datetime | None = None) -> str:
    """Render what :func:`pacdp.site.status.read_status` returns, as a complete HTML document."""
    plan, budget = state["plan"], state["budget"]
    terms = format_terms(budget["delta"], budget["adjacency"], budget["unit"])
    return load_template("site.html").render(
        client=state["client"],
        time=_format_time((time or datetime.now(UTC)).isoformat()),
        unit=budget["unit"],
        terms=terms,
        facts=_list_facts(state, terms),
        used=state["used"],
        warnings=_list_warnings(state),
        levels=state["levels"],
        history=[
            row
            | {
                "state": _STATES[row["state"]],
                "debited": _format_time(row["debited"]),
                "answered": _format_time(row["answered"]),
            }
            for row in plan.get("history", [])
        ],
        refusals=[
            {"code": code, "count": count, "meaning": MEANINGS[Code(code)]}
            for code, count in sorted(state["refusals"].items())
        ],
        agreement=plan.get("agreement", {}),
        hashes={
            "accepted plan": plan.get("hash") if plan["accepted"] else None,
            "head of the ledger": state["head"],
        },
        entries=state["entries"],
        head_file=_HEADS[state["head_file"]],
        pacdp_version=__version__,
        style=load_style(),
    )


def _list_facts(state: Mapping[str, Any], terms: str) -> list[dict[str, str]]:
    plan, refused = state["plan"], sum(state["refusals"].values())
    facts = [
        ("Budget", f"ε = {state['budget']['epsilon']:g}", terms),
        (
            "Spent",
            f"ε = {state['spent']['epsilon']:.3g}",
            f"{format_count(state['releases'], 'release')}, in all runs on this ledger",
        ),
        ("Left", f"{100 * (1 - state['used']):.0f} %", "of the budget, counted in equal releases"),
    ]
    if state["head_file"] == "stale":
        facts[-1] = ("Left", "unknown", "debits are missing; all of the budget counts as spent")
    if "error" not in plan:
        last = f"the last one is round {plan['last_round']}" if plan["last_round"] else "none yet"
        facts.append(("Rounds answered", f"{plan['answered']} of {plan['participations']}", last))
        facts.append(
            ("Rounds left", str(plan["left"]), "that the plan asks for and the budget allows")
        )
    facts.append(("Refused", str(refused), "requests, by code below"))
    running = {True: "yes", False: "no", None: "unknown"}[state["running"]]
    facts.append(("Running", running, "when this page was created"))
    return [dict(zip(("name", "value", "note"), fact, strict=True)) for fact in facts]


def _list_warnings(state: Mapping[str, Any]) -> list[str]:
    plan = state["plan"]
    warnings = []
    if state["head_file"] != "known":
        warnings.append(_HEADS[state["head_file"]])
    if "error" in plan:
        warnings.append(f"There is no usable plan: {plan['error']}.")
        return warnings
    if not plan["accepted"]:
        warnings.append("The plan in the site's folder is not the one that was accepted.")
    for name, meaning in (
        ("unanswered", "Debited but not answered yet; the server can ask again"),
        ("lost", "Debited, but the reply was lost or could not be computed"),
    ):
        if plan[name]:
            warnings.append(f"{meaning}: round {', '.join(map(str, plan[name]))}.")
    return warnings


def _format_time(text: str | None) -> str:
    """Format a time of the ledger, to the second.

    >>> _format_time("2026-11-03T14:05:09.123+00:00"), _format_time(None)
    ('2026-11-03 14:05:09', '–')
    """
    if text is None:
        return "–"
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
