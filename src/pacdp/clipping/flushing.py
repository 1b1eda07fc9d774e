"""Computing with subnormal numbers flushed to zero, on every thread that takes part.

On many processors arithmetic with subnormal numbers is a hundred times slower, so a record that
leads to them could be recognised by the time taken. Flushed, they cost nothing. The switch is part
of a thread's state: a computation on several threads runs on a thread of its own, whose helper
threads inherit the switch when they are started.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Made = TypeVar("Made")

_SUBNORMAL, _ONE = 5e-324, 1.0
_thread = threading.local()


def run_flushed(work: Callable[[], Made]) -> Made:
    """What the work returns, computed with subnormal numbers flushed to zero.

    >>> run_flushed(lambda: float(torch.tensor(2.0**-140) * 1))
    0.0
    >>> float(torch.tensor(2.0**-140) * 1) > 0
    True
    """
    if torch.get_num_threads() > 1 and not getattr(_thread, "all_flushed", False):
        return _own_thread(os.getpid()).submit(work).result()
    # Python's own numbers are flushed with torch's.
    before = _SUBNORMAL * _ONE == 0
    torch.set_flush_denormal(True)
    try:
        return work()
    finally:
        torch.set_flush_denormal(before)


@lru_cache(maxsize=1)
def _own_thread(process: int) -> ThreadPoolExecutor:
    # Threads do not survive a fork, so each process has its own.
    return ThreadPoolExecutor(1, thread_name_prefix="pacdp-flushed", initializer=_begin)


def _begin() -> None:
    torch.set_flush_denormal(True)
    _thread.all_flushed = True
