"""Experiments as files, runs as folders, and the demonstration."""

from pacdp.experiments.experiment import Experiment, read_experiment, shipped
from pacdp.experiments.outcome import Outcome
from pacdp.experiments.prepare import Prepared, prepare
from pacdp.experiments.run_folder import Run, RunFolder

__all__ = [
    "Experiment",
    "Outcome",
    "Prepared",
    "Run",
    "RunFolder",
    "prepare",
    "read_experiment",
    "shipped",
]
