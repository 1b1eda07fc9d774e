"""Several portions at once, each by a process of its own."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

import torch

from pacdp.errors import TrainingError
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Observer, WorkItem, quiet


def run_in_parallel(
    portions: Sequence[WorkItem], store: ArtifactStore, *, jobs: int, observe: Observer
) -> None:
    """Make portions with so many helpers, who share the cores; what they make is in the store.

    Where one is refused, or who waits goes away, the helpers stop: every file is whole or missing.
    """
    others = set(active_children())
    helpers = min(jobs, len(portions))
    pool = ProcessPoolExecutor(
        # A fork of a process that has threads can hang.
        *(helpers, get_context("spawn")),
        initializer=_begin,
        initargs=(max(1, torch.get_num_threads() // helpers),),
    )
    with pool:
        # Neighbours often need the same things: who comes later may find them made.
        spread = [*portions[::2], *portions[1::2]]
        try:
            begun = {pool.submit(_make, one, store): one for one in spread}
            for future in as_completed(begun):
                future.result()
                observe(begun[future].words, begun[future].steps)
        except BrokenProcessPool as error:
            raise TrainingError(
                f"--jobs {jobs}: a helper was ended from outside, perhaps for want of memory; "
                "--resume goes on, with fewer at once if need be"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for helper in set(active_children()) - others:
                helper.terminate()
                helper.join()
            raise


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody waits for a helper any more."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(portion: WorkItem, store: ArtifactStore) -> None:
    # What comes of it stays in the store: to send it would cost more than to read it.
    portion.make(store, quiet)
