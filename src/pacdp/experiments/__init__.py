"""Experiments as files, and runs as results and folders."""

from pacdp.experiments.experiment import Experiment, list_experiments, read_experiment
from pacdp.experiments.prepare import PreparedRun, prepare_run
from pacdp.experiments.results import RunResult
from pacdp.experiments.run_folder import RunFolder

__all__ = [
    "Experiment",
    "PreparedRun",
    "RunFolder",
    "RunResult",
    "list_experiments",
    "prepare_run",
    "read_experiment",
]
