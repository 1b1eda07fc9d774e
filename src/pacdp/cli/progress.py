"""Progress bars for a person who waits; silent in a file or a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from pacdp.progress import Progress

# A bar must keep its place beside a long note.
_NOTE_WIDTH = 60


@contextmanager
def show_progress() -> Iterator["Progress"]:
    """Show a bar for each task that is reported, until it is finished."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[note]}"), TimeRemainingColumn()),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bars:

        def update(task: str, done: int, total: int, note: str = "") -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total, note="")
            # The end of a note is what changes.
            shown = note if len(note) <= _NOTE_WIDTH else f"…{note[1 - _NOTE_WIDTH :]}"
            bars.update(tasks[task], completed=done, total=total, note=shown, visible=done < total)

        yield update
