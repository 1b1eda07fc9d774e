"""The grid: one training per budget, clipping bound and seed, and the matrix P of their scores.

Cells with the same seed share all randomness: who takes part, the batches, the first weights and
the standard normal draws of the noise. Differences between them are due to budget and bound, so few
seeds are enough.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from pacdp.arithmetic import add_arithmetic_version, refuse_other_arithmetic
from pacdp.errors import DataError
from pacdp.offline.grid_simulation import can_stack_plan, score_pairs
from pacdp.offline.proxy_task import ProxyTask
from pacdp.validation import FloatArray


@dataclass(frozen=True, order=True)
class Cell:
    """One training."""

    epsilon: float
    bound: float
    seed: int


@dataclass(frozen=True)
class Grid:
    """Budgets, clipping bounds and seeds."""

    budgets: tuple[float, ...]
    bounds: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def cells(self) -> list[Cell]:
        """All combinations."""
        return [Cell(*values) for values in product(self.budgets, self.bounds, self.seeds)]

    def matrix(self, scores: Mapping[Cell, float]) -> "Matrix":
        """Return P from the scores of all cells."""
        table = [
            [[scores[Cell(e, c, s)] for c in self.bounds] for e in self.budgets] for s in self.seeds
        ]
        return Matrix(self.budgets, self.bounds, self.seeds, np.array(table))


@dataclass(frozen=True, eq=False)
class Matrix(Grid):
    """P: a grid with its scores (seeds, budgets, bounds)."""

    scores: FloatArray

    @property
    def mean(self) -> FloatArray:
        """The mean over seeds."""
        return np.asarray(self.scores.mean(0))

    @property
    def deviation(self) -> FloatArray:
        """The sample standard deviation over seeds; zero with one seed."""
        return np.asarray(self.scores.std(0, ddof=1 if len(self.seeds) > 1 else 0))


# Trains cells, and yields each score as soon as it is known.
Worker = Callable[[ProxyTask, Sequence[Cell]], Iterable[tuple[Cell, float]]]


def train_in_process(proxy_task: ProxyTask, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
    """Train cells on this machine: linear models all together, others one after the other."""
    if not can_stack_plan(proxy_task.plan(1.0, 1.0, 0)):
        for cell in cells:
            yield cell, proxy_task.score(cell.epsilon, cell.bound, cell.seed)
        return
    pairs_by_seed: dict[int, list[tuple[float, float]]] = {}
    for cell in cells:
        pairs_by_seed.setdefault(cell.seed, []).append((cell.epsilon, cell.bound))
    # Seeds for which the same cells are missing are trained in one program.
    seeds_by_pairs: dict[tuple[tuple[float, float], ...], list[int]] = {}
    for seed, pairs in pairs_by_seed.items():
        seeds_by_pairs.setdefault(tuple(pairs), []).append(seed)
    for same_pairs, seeds in seeds_by_pairs.items():
        scores = score_pairs(proxy_task, same_pairs, seeds)
        for seed, row in zip(seeds, scores, strict=True):
            for (epsilon, bound), score in zip(same_pairs, row, strict=True):
                yield Cell(epsilon, bound, seed), score


@dataclass
class ScoreStore:
    """Scores that are appended to a file one by one, so that an interrupted grid can be resumed.

    Without a path they are kept in memory only.
    """

    path: Path | None
    digest: str
    """The digest of the proxy task to which the scores belong."""
    scores: dict[Cell, float] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None, proxy_task: ProxyTask) -> "ScoreStore":
        """Read the scores of a file; scores of another proxy task are refused."""
        store = cls(path, proxy_task.digest)
        if path is None or not path.exists():
            return store
        first, *lines = path.read_text().splitlines() or [""]
        try:
            head = json.loads(first)
            digest = head["setting"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}: is no file of scores") from None
        advice = "remove it and run pacdp fit again"
        refuse_other_arithmetic(path, head, mark="setting", advice=advice)
        if digest != store.digest:
            raise DataError(f"{path}: holds scores of another plan or proxy")
        for number, line in enumerate(lines, 2):
            try:
                content = json.loads(line)
                store.scores[Cell(*content[:3])] = float(content[3])
            except (ValueError, TypeError, IndexError):
                # The last line may be incomplete; that cell is trained again.
                if number <= len(lines):
                    raise DataError(f"{path}: line {number} is damaged") from None
        rows = [_format_line(cell, score) for cell, score in store.scores.items()]
        path.write_text("\n".join([store._head, *rows]) + "\n")
        return store

    @property
    def _head(self) -> str:
        return json.dumps(add_arithmetic_version({"setting": self.digest}))

    def add(self, cell: Cell, score: float) -> None:
        """Store one more score."""
        self.scores[cell] = score
        if self.path is None:
            return
        head = "" if self.path.exists() else f"{self._head}\n"
        with self.path.open("a") as out:
            out.write(f"{head}{_format_line(cell, score)}\n")
            out.flush()
            os.fsync(out.fileno())


def _format_line(cell: Cell, score: float) -> str:
    return json.dumps([cell.epsilon, cell.bound, cell.seed, score])


def run_grid(
    proxy_task: ProxyTask,
    grid: Grid,
    *,
    store: ScoreStore | None = None,
    worker: Worker = train_in_process,
    observe: Callable[[Cell, float], None] | None = None,
) -> Matrix:
    """Train the cells whose scores are missing, and return the matrix."""
    store = ScoreStore(None, proxy_task.digest) if store is None else store
    missing = [cell for cell in grid.cells if cell not in store.scores]
    for cell, score in worker(proxy_task, missing):
        store.add(cell, score)
        if observe is not None:
            observe(cell, score)
    return grid.matrix(store.scores)
