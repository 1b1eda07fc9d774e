"""When answers leave: at multiples of a public interval, so that time says nothing.

How long an answer takes depends on the machine and, a little, on the records. The interval is
measured on synthetic records and is several times the longest answer, so that replies, replays and
refusals all leave one interval after they were asked for. An answer that takes longer leaves at the
next multiple. The interval is counted from the moment at which the request was complete: with
multiples of the clock, whoever asks could choose a moment shortly before one of them, and see
whether the answer makes it.
"""

import math
import time

from pacdp.data.records import Records
from pacdp.federation import Client, LocalModel, Server
from pacdp.site.records import make_synthetic_records

MARGIN = 4.0
# Seconds, because an answer is also written to two disks.
SMALLEST = 0.25
_ANSWERS = 3


def measure_interval(local_model: LocalModel, client: int, like: Records) -> float:
    """Return the margin times the longest answer with synthetic records, in seconds.

    The plan's model is trained, so that nothing has to be compiled or loaded later.
    """
    plan = local_model.plan
    records = make_synthetic_records(plan, client, like)
    broadcast = Server(plan, local_model.rebuild().state()).broadcast(0)
    longest = 0.0
    for _ in range(_ANSWERS):
        # A new ledger in memory each time, because the plan may have a single participation.
        synthetic = Client(client, plan, records, local_model=local_model, checked=True)
        start = time.monotonic()
        synthetic.answer(broadcast)
        longest = max(longest, time.monotonic() - start)
    return max(SMALLEST, math.ceil(100 * MARGIN * longest) / 100)


def departure(start: float, ready: float, interval: float) -> float:
    """Return when an answer leaves: the first multiple of the interval after it is ready.

    >>> departure(start=10.0, ready=10.2, interval=0.5), departure(10.0, 10.7, 0.5)
    (10.5, 11.0)
    """
    return start + interval * max(1, math.ceil((ready - start) / interval))
