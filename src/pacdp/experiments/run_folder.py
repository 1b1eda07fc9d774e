"""A run as a folder of plain files. :meth:`RunResult.load` reads a finished one.

====================  ======================================================================
``plan.json``         all public decisions, made before the first round
``experiment.json``   the settings it came from
``partition.json``    which client holds which records
``curve.json``        F, where the run had to fit it
``metrics.jsonl``     one line for each round, written as it ends
``result.json``       final metrics, and each client's guarantee
``model.safetensors`` the final model
``report.html``       the report, written last by ``pacdp run``
``checkpoint.pt``     the state after the last round, from which ``--resume`` continues
``environment.json``  versions of packages and system, and the time
====================  ======================================================================
"""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import save_file

from pacdp.arithmetic import RUN_AGAIN
from pacdp.errors import DataError, InputError
from pacdp.experiments.prepare import PreparedRun
from pacdp.experiments.results import RunResult
from pacdp.federation import Checkpoint, Plan, RoundResult
from pacdp.storage import write_atomically

SETUP = ("curve.json", "experiment.json", "partition.json", "environment.json", ".plan.json")
PACKAGES = ("pacdp", "torch", "numpy", "scipy", "dp-accounting")


class RunFolder:
    """Writes the files of a run as it proceeds; ``resume`` continues a run that was stopped."""

    def __init__(self, path: Path, prepared: PreparedRun, *, resume: bool = False) -> None:
        self.path = path
        self.checkpoint = Checkpoint(path / "checkpoint.pt", run=prepared.plan.run)
        settings = prepared.experiment.model_dump(mode="json")
        if resume and (path / "plan.json").is_file():
            self._resume(prepared, settings)
            return
        present = {item.name for item in path.iterdir()} if path.is_dir() else set()
        # The run was stopped before its first round: its setup is written again.
        begun = resume and present <= {*SETUP, ".lock"}
        if (path.exists() and not path.is_dir()) or (present and not begun):
            raise InputError(
                f"{path}: exists already, must be a new or empty folder (or resume the run there)"
            )
        path.mkdir(parents=True, exist_ok=True)
        self._lock()
        _write(path / "experiment.json", settings)
        prepared.partition.save(path / "partition.json")
        _write(path / "environment.json", describe_environment())
        # Written last and atomically: a folder with a plan has all other setup files.
        prepared.plan.save(path / ".plan.json")
        (path / ".plan.json").replace(path / "plan.json")

    def _lock(self) -> None:
        """Make sure that no other process works in the folder."""
        self._held = FileLock(self.path / ".lock")
        try:
            self._held.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.path}: another run is at work there") from None

    def _resume(self, prepared: PreparedRun, settings: Mapping[str, Any]) -> None:
        """Continue a run that was stopped, from the last round in its checkpoint."""
        self._lock()
        if Plan.load(self.path / "plan.json", advice=RUN_AGAIN) != prepared.plan:
            raise DataError(f"{self.path}: holds another plan; a run is resumed with the same plan")
        if json.loads((self.path / "experiment.json").read_text()) != dict(settings):
            raise DataError(
                f"{self.path}: holds another experiment; a run is resumed with the same one"
            )
        done = self.checkpoint.load()
        rows = [] if done is None else done.history
        (self.path / "metrics.jsonl").write_text("".join(_line(row) for row in rows))

    def add_round(self, result: RoundResult) -> None:
        """Append the line of a round."""
        with (self.path / "metrics.jsonl").open("a") as out:
            out.write(_line(result.to_json()))

    def finish(self, result: RunResult) -> None:
        """Write the model and then the result, whose presence says that the run is complete."""
        _finish(self.path, result)


def write_result(path: Path, result: RunResult) -> None:
    """Write a result as a run folder, replacing an earlier one of the same run."""
    path.mkdir(parents=True, exist_ok=True)
    result.plan.save(path / "plan.json")
    rows = [row.to_json() for row in result.history]
    write_atomically(path / "metrics.jsonl", "".join(map(_line, rows)))
    _write(path / "environment.json", describe_environment())
    _finish(path, result)


def _finish(path: Path, result: RunResult) -> None:
    assert result.weights is not None
    save_file(result.weights, path / "model.safetensors")
    _write(path / "result.json", result.to_json())


def describe_environment() -> dict[str, str]:
    """Return the versions of the packages and the system, and the time."""
    return {
        **{name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
