"""Several clients at once, one on each core."""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from pacdp.errors import InputError
from pacdp.federation.client import Client
from pacdp.federation.engines.serial import answer_or_refuse
from pacdp.federation.local_model import Workbench
from pacdp.federation.messages import Answers, Broadcast, Refusal, Reply

Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadedEngine:
    """Computes as many clients at once as torch has threads, each on a model of its own.

    A step of a small model cannot keep two cores busy; two steps of two clients can. For models
    whose layers draw no random numbers: torch's generator is one for all threads.
    """

    name = "threads"

    def __init__(self, make: Callable[[], Workbench]) -> None:
        self._benches: queue.SimpleQueue[Workbench] = queue.SimpleQueue()
        benches = [make() for _ in range(torch.get_num_threads())]
        first = [next(iter(bench.parameters.values())) for bench in benches]
        if len({value.data_ptr() for value in first}) < len(first):
            raise InputError("make: gives the same model again; must give a new one each time")
        for bench in benches:
            self._benches.put(bench)

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Each client's answer."""

        def answer(number: int) -> Reply | Refusal:
            bench = self._benches.get()
            try:
                return answer_or_refuse(number, clients[number], broadcast, bench)
            finally:
                self._benches.put(bench)

        answers = on_threads(answer, list(clients))
        return dict(zip(clients, answers, strict=True))


def on_threads(
    function: Callable[[Item], Result], items: Sequence[Item], *, most: int | None = None
) -> list[Result]:
    """Apply a function to each item, on as many threads as torch has, and at ``most`` so many.

    torch splits each operation over its threads, which takes longer than a small operation itself;
    here each item is computed by a single thread.

    >>> on_threads(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """
    workers = min(torch.get_num_threads() if most is None else most, len(items))
    with _single_threaded():
        if workers <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, items))


@contextmanager
def _single_threaded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
