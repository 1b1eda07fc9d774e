"""Parallel computation on torch's threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(
    function: Callable[[Item], Result], items: Sequence[Item], *, most: int | None = None
) -> list[Result]:
    """Apply a function to each item on torch's number of threads, or on ``most`` if that is less.

    torch distributes each operation over its threads, which costs more than a small operation
    itself; here each item is computed by a single thread.

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
