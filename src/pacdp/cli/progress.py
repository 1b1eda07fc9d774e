"""Progress for a person who waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

Making = Callable[[str, int, int], None]
"""Told what is being made, how much of it is over, and how much there is."""


@contextmanager
def bar(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar for a person who waits; quiet in a file or a pipe."""
    with _progress() as shown:
        yield shown, shown.add_task(description, total=total, note="")


@contextmanager
def waiting() -> Iterator[Making]:
    """Bars that come only where a representation is being made, and go when it is."""
    with _progress(transient=True) as shown:
        yield making(shown)


def making(shown: Progress) -> Making:
    """Gives each part of a representation a line of its own among the bars."""
    tasks: dict[str, TaskID] = {}

    def observe(words: str, done: int, total: int) -> None:
        if words not in tasks:
            tasks[words] = shown.add_task(words, total=total, note="")
        shown.update(tasks[words], completed=done, total=total, visible=done < total)

    return observe


def _progress(*, transient: bool = False) -> Progress:
    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[note]}"), TimeRemainingColumn()),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=transient)
