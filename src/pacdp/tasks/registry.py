"""Registry of tasks by name, and loading of stored tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pacdp.errors import InputError
from pacdp.tasks.base import Task
from pacdp.validation import suggest

TASKS: dict[str, type[Task]] = {}
T = TypeVar("T", bound=type[Task])


def register_task(task: T) -> T:
    """Class decorator that registers a task under its name, so that plans can be loaded."""
    if TASKS.setdefault(task.name, task) is not task:
        raise InputError(f"task {task.name}: is registered already, must have another name")
    return task


def load_task(stored: Any) -> Task:
    """Return the task of a stored form; a task is returned as it is.

    >>> from pacdp.tasks import Regression
    >>> load_task(2).name, load_task(0) == load_task({"name": "regression"}) == Regression()
    ('classification', True)
    """
    if isinstance(stored, Task):
        return stored
    if isinstance(stored, int) and not isinstance(stored, bool):
        return task_for_classes(stored)
    if not isinstance(stored, Mapping) or "name" not in stored:
        raise InputError("task: must be a number of classes, or a table with the task's name")
    name, values = stored["name"], {key: stored[key] for key in stored if key != "name"}
    if name not in TASKS:
        near = suggest(str(name), TASKS)
        raise InputError(f"task = {name!r}: unknown; {near}There are {', '.join(TASKS)}")
    try:
        return TASKS[name](**values)
    except TypeError as error:
        raise InputError(f"task {name}: {error}") from None


def task_for_classes(classes: int | Sequence[str]) -> Task:
    """Return classification with the given number or names of classes; regression if none.

    >>> print(task_for_classes(3), task_for_classes(["no", "yes"]), task_for_classes(0), sep=", ")
    3 classes, 2 classes, regression
    """
    # Imported here, since both register themselves.
    from pacdp.tasks.classification import Classification
    from pacdp.tasks.regression import Regression

    count = classes if isinstance(classes, int) else len(classes)
    if count < 0:
        raise InputError(f"classes = {count}: must be 0 (regression) or at least 2")
    if count == 0:
        return Regression()
    return Classification(count, () if isinstance(classes, int) else tuple(classes))
