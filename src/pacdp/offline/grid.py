"""The grid: one training for each budget, bound and seed, and the matrix P of their scores.

Cells share everything that chance decides but the cell itself: who takes part, the batches, the
first weights and the standard normal draws of the noise. Differences between cells are then due to
budget and bound, and few seeds tell much.
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


@dataclass(frozen=True, eq=False)
class Matrix:
    """P: scores (seeds, budgets, bounds)."""

    budgets: tuple[float, ...]
    bounds: tuple[float, ...]
    seeds: tuple[int, ...]
    scores: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Over seeds."""
        return np.asarray(self.scores.mean(0))

    @property
    def deviation(self) -> FloatArray:
        """Over seeds, of the sample; zero with one seed."""
        return np.asarray(self.scores.std(0, ddof=1 if len(self.seeds) > 1 else 0))


@dataclass(frozen=True)
class Grid:
    """Budgets, bounds and seeds."""

    budgets: tuple[float, ...]
    bounds: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def cells(self) -> list[Cell]:
        """All of them."""
        return [Cell(*values) for values in product(self.budgets, self.bounds, self.seeds)]

    def matrix(self, scores: Mapping[Cell, float]) -> Matrix:
        """P from the scores of all cells."""
        table = [
            [[scores[Cell(e, c, s)] for c in self.bounds] for e in self.budgets] for s in self.seeds
        ]
        return Matrix(self.budgets, self.bounds, self.seeds, np.array(table))


# Trains cells, and gives each score as it comes.
Worker = Callable[[ProxyTask, Sequence[Cell]], Iterable[tuple[Cell, float]]]


def train_in_process(proxy_task: ProxyTask, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
    """On this machine: linear models all together, others one training after the other."""
    if can_stack_plan(proxy_task.plan(1.0, 1.0, 0)):
        # Seeds that miss the same cells are trained in one program.
        wanted: dict[int, list[tuple[float, float]]] = {}
        for cell in cells:
            wanted.setdefault(cell.seed, []).append((cell.epsilon, cell.bound))
        alike: dict[tuple[tuple[float, float], ...], list[int]] = {}
        for seed, pairs in wanted.items():
            alike.setdefault(tuple(pairs), []).append(seed)
        for same, seeds in alike.items():
            scores = score_pairs(proxy_task, same, seeds)
            for seed, own in zip(seeds, scores, strict=True):
                for (epsilon, bound), score in zip(same, own, strict=True):
                    yield Cell(epsilon, bound, seed), score
        return
    for cell in cells:
        yield cell, proxy_task.score(cell.epsilon, cell.bound, cell.seed)


@dataclass
class ScoreStore:
    """Scores in a file, a line for each as it comes: a killed grid goes on where it stood."""

    path: Path | None
    digest: str
    """The digest of what they were made under."""
    scores: dict[Cell, float] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None, proxy_task: ProxyTask) -> "ScoreStore":
        """What the file holds; one that was made under another setting is refused."""
        store = cls(path, proxy_task.digest)
        if path is None or not path.exists():
            return store
        first, *lines = path.read_text().splitlines() or [""]
        try:
            head = json.loads(first)
            made_under = head["setting"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}: is no file of scores") from None
        advice = "remove it and run pacdp fit again"
        refuse_other_arithmetic(path, head, mark="setting", advice=advice)
        if made_under != store.digest:
            raise DataError(f"{path}: holds scores of another plan or proxy")
        for number, line in enumerate(lines, 2):
            try:
                content = json.loads(line)
                store.scores[Cell(*content[:3])] = float(content[3])
            except (ValueError, TypeError, IndexError):
                # The last line may be half written; what is lost is trained again.
                if number <= len(lines):
                    raise DataError(f"{path}: line {number} is damaged") from None
        whole = [store._head, *map(_line, store.scores.items())]
        path.write_text("\n".join(whole) + "\n")
        return store

    @property
    def _head(self) -> str:
        return json.dumps(add_arithmetic_version({"setting": self.digest}))

    def add(self, cell: Cell, score: float) -> None:
        """Keep one more."""
        self.scores[cell] = score
        if self.path is None:
            return
        first = "" if self.path.exists() else f"{self._head}\n"
        with self.path.open("a") as out:
            out.write(f"{first}{_line((cell, score))}\n")
            out.flush()
            os.fsync(out.fileno())


def _line(entry: tuple[Cell, float]) -> str:
    cell, score = entry
    return json.dumps([cell.epsilon, cell.bound, cell.seed, score])


def run_grid(
    proxy_task: ProxyTask,
    grid: Grid,
    *,
    store: ScoreStore | None = None,
    worker: Worker = train_in_process,
    observe: Callable[[Cell, float], None] | None = None,
) -> Matrix:
    """Train what is missing, and give the matrix."""
    store = ScoreStore(None, proxy_task.digest) if store is None else store
    missing = [cell for cell in grid.cells if cell not in store.scores]
    for cell, score in worker(proxy_task, missing):
        store.add(cell, score)
        if observe is not None:
            observe(cell, score)
    return grid.matrix(store.scores)
