"""How a comparison is measured and written down."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison; ``goal`` says which way its ``ratio`` counts."""

    row: int
    work: str
    against: str
    ratio: float
    goal: str
    holds: bool
    versions: dict[str, str]
    details: dict[str, float] = field(default_factory=dict)


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages that took part."""
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def interleaved(*works: Callable[[], object], repeats: int) -> list[float]:
    """Median seconds of each work, run in turns so that a slow moment hits all alike."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, seconds, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def write(rows: Sequence[Row], path: Path) -> None:
    """Replace the file by these rows; called after each one, so that nothing measured is lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
