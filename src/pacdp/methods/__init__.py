"""PAC-DP and what it is compared with, one file each, under one contract."""

from pacdp.methods.base import Method, Task, Work
from pacdp.methods.registry import METHODS, method

__all__ = ["METHODS", "Method", "Task", "Work", "method"]
