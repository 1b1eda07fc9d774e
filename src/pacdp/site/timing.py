"""When answers are sent: after a multiple of a public interval, so that timing reveals nothing.

The time that an answer takes depends on the machine and, slightly, on the records. The interval is
measured with synthetic records and a temporary ledger beside the site's own. It is several times
the longest answer, so that replies, replays and refusals are all sent one interval after the
request. An answer that takes longer is sent at the next multiple. The interval starts when the
request has arrived completely. With fixed clock times instead, an attacker could send a request
shortly before one of them and observe whether the answer is ready in time.
"""

import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pacdp.data.records import Records
from pacdp.federation import Client, LocalModel, Plan, Server
from pacdp.privacy import RoundRequest, SQLiteLedger
from pacdp.site.head_file import HeadFile
from pacdp.site.records import make_synthetic_records
from pacdp.site.round_ledger import RoundLedger

MARGIN = 4.0
# In seconds; a shorter interval might be exceeded on a busy machine.
SMALLEST = 0.1
_ANSWERS = 3


def measure_interval(
    local_model: LocalModel, client: int, like: Records, *, ledger: Path, head: Path
) -> float:
    """Return the margin times the longest answer with synthetic records, in seconds.

    Temporary debits and replies are written beside the ``ledger`` and the ``head``. The plan's
    model is trained, so that nothing has to be compiled or loaded later.
    """
    plan = local_model.plan
    records = make_synthetic_records(plan, client, like)
    broadcast = Server(plan, local_model.rebuild().state()).broadcast(0)
    seconds = []
    for _ in range(1 + _ANSWERS):
        with (
            # A new ledger each time, because the plan may have a single participation.
            TemporaryDirectory(dir=ledger.parent, prefix=".interval-") as beside_ledger,
            TemporaryDirectory(dir=head.parent, prefix=".interval-") as beside_head,
        ):
            synthetic_ledger = _create_ledger(Path(beside_ledger, "ledger"), plan, client)
            request = RoundRequest(plan.run, 0, "0" * 64)
            round_ledger = RoundLedger(synthetic_ledger, request)
            synthetic = Client(
                *(client, plan, records), ledger=round_ledger, local_model=local_model, checked=True
            )
            start = time.monotonic()
            reply = synthetic.answer(broadcast)
            content = b"".join(value.numpy().tobytes() for value in reply.update.values())
            synthetic_ledger.store_reply(request, content)
            HeadFile(Path(beside_head, "head")).write(synthetic_ledger.head)
            seconds.append(time.monotonic() - start)
    # The first answer includes loading and compiling.
    return max(SMALLEST, math.ceil(100 * MARGIN * max(seconds[1:])) / 100)


def _create_ledger(path: Path, plan: Plan, client: int) -> SQLiteLedger:
    budget = plan.budget(client)
    assert budget is not None
    client_plan = plan.clients[client]
    return SQLiteLedger.create(
        path, client=client_plan.name, budget=budget, levels=client_plan.declared_levels
    )


def compute_departure(start: float, ready: float, interval: float) -> float:
    """Return when an answer is sent: at the first multiple of the interval after it is ready.

    >>> compute_departure(start=10.0, ready=10.2, interval=0.5), compute_departure(10.0, 10.7, 0.5)
    (10.5, 11.0)
    """
    return start + interval * max(1, math.ceil((ready - start) / interval))
