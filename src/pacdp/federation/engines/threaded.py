"""Work on several cores: one thread for each, and none of torch's own beside it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Made = TypeVar("Made")


def on_threads(
    work: Callable[[Item], Made], items: Sequence[Item], *, most: int | None = None
) -> list[Made]:
    """What the work makes of each item, in their order.

    torch splits each operation over its threads, which takes longer than a small operation itself.
    Here as many items as it has threads are worked on at once, each by one; or at ``most`` so many.

    >>> on_threads(lambda number: number**2, [1, 2, 3])
    [1, 4, 9]
    """
    workers = min(torch.get_num_threads() if most is None else most, len(items))
    with _single_threaded():
        if workers <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))


@contextmanager
def _single_threaded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
