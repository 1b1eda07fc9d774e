"""What a model is trained for: its loss, its targets, its metrics and the checks of its labels.

A data set names its task and a plan stores it; all other code asks the task. A new kind of task is
one class with the decorator :func:`register_task`.
"""

from pacdp.tasks.base import Task
from pacdp.tasks.classification import Classification
from pacdp.tasks.registry import load_task, register_task, task_for_classes
from pacdp.tasks.regression import Regression

__all__ = [
    "Classification",
    "Regression",
    "Task",
    "load_task",
    "register_task",
    "task_for_classes",
]
