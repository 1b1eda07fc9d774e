"""The offline phase: fitting F(ε) on a public proxy, before any private record is read."""

from pacdp.offline.configuration import Axis, Offline
from pacdp.offline.fit import fit_curve
from pacdp.offline.grid import Cell, Grid, Matrix, ScoreStore, Worker, train_in_process
from pacdp.offline.proxy_task import ProxyTask

__all__ = [
    "Axis",
    "Cell",
    "Grid",
    "Matrix",
    "Offline",
    "ProxyTask",
    "ScoreStore",
    "Worker",
    "fit_curve",
    "train_in_process",
]
