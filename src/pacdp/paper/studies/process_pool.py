"""Run work items in several processes."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

import torch

from pacdp.errors import TrainingError
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import StepCounter, WorkItem

# The store of a worker process, which keeps its data in memory from one item to the next.
_worker_store: ArtifactStore


def run_in_parallel(
    items: Sequence[WorkItem], store: ArtifactStore, *, jobs: int, counter: StepCounter
) -> None:
    """Run work items in several processes that share the cores; results stay in the store.

    If an item fails or this process ends, the workers stop. Every file is complete or missing.
    """
    others = set(active_children())
    workers = min(jobs, len(items))
    pool = ProcessPoolExecutor(
        workers,
        # A fork of a process that has threads can hang.
        get_context("spawn"),
        initializer=_start_worker,
        initargs=(max(1, torch.get_num_threads() // workers), store),
    )
    with pool:
        # Neighbouring items often need the same files: the later one may find them written.
        order = [*items[::2], *items[1::2]]
        try:
            futures = {pool.submit(_run_item, item): item for item in order}
            for future in as_completed(futures):
                future.result()
                counter.advance(futures[future].note, futures[future].steps)
        except BrokenProcessPool as error:
            raise TrainingError(
                f"--jobs {jobs}: a worker process was killed, perhaps for lack of memory; "
                "continue with --resume, and with fewer jobs if necessary"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()
                worker.join()
            raise


def _start_worker(threads: int, store: ArtifactStore) -> None:
    global _worker_store
    _worker_store = store
    torch.set_num_threads(threads)
    Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End a worker whose parent has ended: nobody waits for its results."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_item(item: WorkItem) -> None:
    # The result is in the store, and reading it is cheaper than sending it.
    item.run(_worker_store, StepCounter())
