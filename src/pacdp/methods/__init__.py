"""PAC-DP and what it is compared with, one file each, under one contract."""

from pacdp.methods.base import Answer, Charge, Method, Public, Task, Terms, Work
from pacdp.methods.pac_dp import PacDp
from pacdp.methods.registry import (
    METHODS,
    build_method,
    find_method,
    import_method,
    name_of,
    register_method,
)

__all__ = [
    "METHODS",
    "Answer",
    "Charge",
    "Method",
    "PacDp",
    "Public",
    "Task",
    "Terms",
    "Work",
    "build_method",
    "find_method",
    "import_method",
    "name_of",
    "register_method",
]
