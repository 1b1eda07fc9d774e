"""The offline phase: from a public proxy to F(ε), before any private record is read."""

from pacdp.offline.configuration import Axis, Offline
from pacdp.offline.fit import fit_curve
from pacdp.offline.grid import Cell, Grid, Kept, Matrix, Worker, in_process
from pacdp.offline.proxy_task import Setting

__all__ = [
    "Axis",
    "Cell",
    "Grid",
    "Kept",
    "Matrix",
    "Offline",
    "Setting",
    "Worker",
    "fit_curve",
    "in_process",
]
