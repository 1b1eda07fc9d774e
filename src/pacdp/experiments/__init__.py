"""Experiments as files, runs as folders, and the demonstration."""

from pacdp.experiments.experiment import Experiment, read_experiment, shipped
from pacdp.experiments.prepare import Prepared, prepare
from pacdp.experiments.results import RunResult
from pacdp.experiments.run_folder import RunFolder

__all__ = [
    "Experiment",
    "Prepared",
    "RunFolder",
    "RunResult",
    "prepare",
    "read_experiment",
    "shipped",
]
