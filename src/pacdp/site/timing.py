"""When answers leave: at multiples of a public interval, so that time says nothing.

How long an answer takes depends on the machine and, a little, on the records. The interval is
measured on synthetic records, debited from a ledger beside the site's own, and is several times the
longest answer, so that replies, replays and refusals all leave one interval after they were asked
for. An answer that takes longer leaves at the next multiple. The interval is counted from the
moment at which the request was complete: with multiples of the clock, whoever asks could choose a
moment shortly before one of them, and see whether the answer makes it.
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
# Seconds, below which a busy machine could make the difference.
SMALLEST = 0.1
_ANSWERS = 3


def measure_interval(
    local_model: LocalModel, client: int, like: Records, *, ledger: Path, head: Path
) -> float:
    """Return the margin times the longest answer with synthetic records, in seconds.

    Debits and replies are written beside the ``ledger`` and the ``head``, and removed again. The
    plan's model is trained, so that nothing has to be compiled or loaded later.
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
            paying = RoundLedger(synthetic_ledger, request)
            synthetic = Client(
                *(client, plan, records), ledger=paying, local_model=local_model, checked=True
            )
            start = time.monotonic()
            reply = synthetic.answer(broadcast)
            content = b"".join(value.numpy().tobytes() for value in reply.update.values())
            synthetic_ledger.store_reply(request, content)
            HeadFile(Path(beside_head, "head")).write(synthetic_ledger.head)
            seconds.append(time.monotonic() - start)
    # The first one loads and compiles.
    return max(SMALLEST, math.ceil(100 * MARGIN * max(seconds[1:])) / 100)


def _create_ledger(path: Path, plan: Plan, client: int) -> SQLiteLedger:
    budget = plan.budget(client)
    assert budget is not None
    own = plan.clients[client]
    return SQLiteLedger.create(path, client=own.name, budget=budget, levels=own.declared_levels)


def compute_departure(start: float, ready: float, interval: float) -> float:
    """Return when an answer leaves: the first multiple of the interval after it is ready.

    >>> compute_departure(start=10.0, ready=10.2, interval=0.5), compute_departure(10.0, 10.7, 0.5)
    (10.5, 11.0)
    """
    return start + interval * max(1, math.ceil((ready - start) / interval))
