"""How long computations say how far they are."""

from typing import Protocol


class Progress(Protocol):
    """Called as a task proceeds. The same task may be reported any number of times."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """``done`` of about ``total`` steps of a task are over; a note says what is going on."""


def ignore_progress(task: str, done: int, total: int, note: str = "") -> None:
    """Report nothing.

    >>> ignore_progress("training", 1, 12)
    """
