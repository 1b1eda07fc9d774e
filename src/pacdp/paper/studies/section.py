"""The section of a study in the results, and the work items that it is built from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from pacdp.experiments import read_experiment
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.study import Study
from pacdp.progress import Progress, ignore_progress

SMOKE_NOTE = """This is a smoke test, not a result: data, model, budgets, rounds and targets are \
reduced so that it takes seconds, whatever the title and the paper's numbers say."""


class StepCounter:
    """Counts the finished steps of all studies, and reports them as one task."""

    def __init__(self, total: int = 0, progress: Progress = ignore_progress) -> None:
        self.done, self._total, self._progress = 0, total, progress

    @contextmanager
    def step(self, note: str, count: int = 1) -> Iterator[None]:
        """Report a note before some work, and its steps as done afterwards."""
        self.advance(note, 0)
        yield
        self.advance(note, count)

    def advance(self, note: str, count: int) -> None:
        """Report that some more steps are done."""
        self.done += count
        self._progress("reproducing", self.done, self._total, note)


@dataclass(frozen=True)
class WorkItem:
    """A part of a study that can be computed on its own.

    Its runs stay in the store, so that running it again only reads them.
    """

    note: str
    steps: int
    """Number of steps that it counts."""
    run: Callable[[ArtifactStore, StepCounter], Any]
    """Returns what the study's section is built from."""


@dataclass(frozen=True, eq=False)
class Section:
    """What is written about a study."""

    study: Study
    text: str
    csv: str
    figure: Figure | None = None
    report: str | None = None
    """An HTML page."""


def describe_data(experiment: str, *, profile: str) -> str:
    """Name the data that an experiment is trained on in a profile, and what they stand for.

    >>> describe_data("mnist", profile="desk"), describe_data("mnist", profile="smoke")
    ('mnist', 'digits for mnist')
    """
    original = read_experiment(experiment).data.name
    used = read_experiment(experiment, profile=profile).data.name
    return original if used == original else f"{used} for {original}"


def describe_experiment(experiment: str, *, profile: str) -> str:
    """Name an experiment, with its data if they have another name.

    >>> [describe_experiment(name, profile="desk") for name in ("heart", "heart-dnn")]
    ['heart', 'heart-dnn: heart']
    """
    data = describe_data(experiment, profile=profile)
    return experiment if data == experiment else f"{experiment}: {data}"
