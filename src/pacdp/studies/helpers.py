"""Several portions at once, each by a process of its own."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch

from pacdp.studies.part import Observer, Portion, quiet
from pacdp.studies.shelf import Shelf


def make_at_once(
    portions: Sequence[Portion], shelf: Shelf, *, jobs: int, observe: Observer
) -> None:
    """Make portions with so many helpers, who share the cores; what they make is on the shelf."""
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        # A fork of a process that has threads can hang.
        *(jobs, get_context("spawn")),
        initializer=torch.set_num_threads,
        initargs=(threads,),
    )
    with pool:
        # Neighbours often need the same things: who comes later finds them made.
        spread = [*portions[::2], *portions[1::2]]
        begun = {pool.submit(_make, one, shelf): one for one in spread}
        try:
            for future in as_completed(begun):
                future.result()
                observe(begun[future].words, begun[future].steps)
        except BaseException:
            # What has begun ends by itself, or is left with who is stopped; nothing new begins.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make(portion: Portion, shelf: Shelf) -> None:
    # What comes of it stays on the shelf: to send it would cost more than to read it.
    portion.make(shelf, quiet)
