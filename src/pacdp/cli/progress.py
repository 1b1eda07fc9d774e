"""Progress for a person who waits."""

from collections.abc import Iterator
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


@contextmanager
def bar(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar for a person who waits; quiet in a file or a pipe."""
    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[note]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield shown, shown.add_task(description, total=total, note="")
