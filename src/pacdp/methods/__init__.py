"""PAC-DP and what it is compared with, one file each, under one contract."""

from pacdp.methods.base import Answer, Charge, Method, Public, Task, Terms, Work
from pacdp.methods.registry import METHODS, method, register

__all__ = [
    "METHODS",
    "Answer",
    "Charge",
    "Method",
    "Public",
    "Task",
    "Terms",
    "Work",
    "method",
    "register",
]
