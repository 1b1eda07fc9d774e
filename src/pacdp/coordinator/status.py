"""The status of a run for its operator, read from the log."""

from collections import Counter
from typing import Any

from pacdp.coordinator.log import RunLog
from pacdp.coordinator.settings import CoordinatorSettings
from pacdp.federation import Plan
from pacdp.federation.wire import plan_digest
from pacdp.plugins import import_pinned
from pacdp.sockets import is_listening


def read_status(settings: CoordinatorSettings) -> dict[str, Any]:
    """Return the status as plain values, without affecting a running coordinator."""
    import_pinned(settings.modules)
    plan = Plan.load(settings.plan)
    digest = plan_digest(plan, settings.modules)
    state: dict[str, Any] = {
        "run": plan.run,
        "plan": digest,
        "running": is_listening(settings.socket),
        "state": "not started",
        "rounds": plan.rounds,
        "closed": 0,
        "failure": None,
        "sites": {client.name: _describe_answers(Counter()) for client in plan.clients},
        "traffic": None,
        "history": [],
    }
    if not settings.log.exists():
        return state
    log = RunLog(settings.log, run=plan.run, digest=digest)
    closed, failure, answers = log.count_closed(), log.failure, log.count_answers()
    return state | {
        "state": "ended" if closed == plan.rounds else "failed" if failure else "open",
        "closed": closed,
        "failure": failure,
        "sites": {
            client.name: _describe_answers(answers.get(number, Counter()))
            for number, client in enumerate(plan.clients)
        },
        "traffic": log.measure_traffic(plan).model_dump(),
        "history": [row.to_json() for row in log.results()],
    }


def _describe_answers(counts: Counter[str]) -> dict[str, Any]:
    return {
        "replies": counts[""],
        "refusals": {code: count for code, count in sorted(counts.items()) if code},
    }
