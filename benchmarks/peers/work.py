"""What every simulator of a comparison is given: the same records, model and amount of work.

Each is a program of its own, called with a folder's ``records.npz`` and the numbers of
:class:`Work`, and prints one JSON object with the seconds that its simulation took, imports and
reading excluded.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

LR, BOUND, NOISE = 0.1, 1.0, 1.0


@dataclass(frozen=True)
class Work:
    """Federated rounds on random records."""

    model: str
    clients: int
    records: int
    """Of each client."""
    per_round: int
    rounds: int
    batch: int
    epochs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return (13,) if self.model == "logistic" else (1, 28, 28)

    @property
    def classes(self) -> int:
        """How many there are."""
        return 2 if self.model == "logistic" else 10

    @property
    def steps(self) -> int:
        """Local steps of all clients over all rounds."""
        return self.rounds * self.per_round * self.epochs * -(-self.records // self.batch)

    def write(self, path: Path) -> None:
        """Random records, and who holds which."""
        random = np.random.default_rng(0)
        size = self.clients * self.records
        np.savez(
            path,
            inputs=random.normal(size=(size, *self.shape)).astype(np.float32),
            labels=random.integers(self.classes, size=size),
            owner=np.arange(size) % self.clients,
        )

    def network(self) -> nn.Sequential:
        """The model, as plain layers."""
        if self.model == "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(13, self.classes))
        return nn.Sequential(
            *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, self.classes)),
        )

    @property
    def arguments(self) -> list[str]:
        """How it is passed to a program."""
        return [json.dumps(vars(self))]


def asked() -> tuple[Path, Work]:
    """The records' file and the work that this program was called with."""
    return Path(sys.argv[1]).resolve(), Work(**json.loads(sys.argv[2]))


def tell(**found: object) -> None:
    """Answer with one JSON object."""
    sys.stdout.write(json.dumps(found) + "\n")
