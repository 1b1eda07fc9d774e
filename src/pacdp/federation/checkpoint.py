"""Checkpoints: a simulation can be stopped at any moment and resumed with bit-identical results.

After each round everything that the next one depends on is in one file, which is replaced
atomically. What happened after the last complete round is computed again with the same noise: in a
simulation none of it has left, so none of it was spent.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pacdp.arithmetic import (
    RUN_AGAIN,
    add_arithmetic_version,
    refuse_other_arithmetic,
    remove_arithmetic_version,
)
from pacdp.errors import DataError


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The state of a run after a round."""

    round: int
    """Completed rounds."""
    server: Mapping[str, Any]
    """The complete state of the server."""
    made: Mapping[int, list[dict[str, Any]]]
    """The releases that each client has paid for."""
    refused: Mapping[int, int]
    failed: Mapping[int, int]
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    engine: str = "serial"
    """The engine in use; others round differently."""


class Checkpoint:
    """One file with the state of one run.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    >>> checkpoint = Checkpoint(path, run="a")
    >>> checkpoint.load() is None
    True
    >>> checkpoint.save(CheckpointState(round=1, server={}, made={0: []}, refused={}, failed={}))
    >>> checkpoint.load().round
    1
    """

    def __init__(self, path: Path, *, run: str) -> None:
        self.path = path
        self.run = run

    def save(self, state: CheckpointState) -> None:
        """Replace the file atomically."""
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("wb") as out:
            torch.save(add_arithmetic_version({"run": self.run, **vars(state)}), out)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(self.path)

    def load(self) -> CheckpointState | None:
        """Return the saved state, or None; that of another plan or version is refused."""
        if not self.path.exists():
            return None
        try:
            # Tensors and plain values only: nothing in the file is executed.
            content = torch.load(self.path, weights_only=True)
            refuse_other_arithmetic(self.path, content, mark="run", advice=RUN_AGAIN)
            content = remove_arithmetic_version(content)
            run = content.pop("run")
            state = CheckpointState(**content)
        except DataError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            raise DataError(f"{self.path}: is no checkpoint ({error})") from error
        if run != self.run:
            raise DataError(f"{self.path}: is of another plan, must be of {self.run}")
        return state
