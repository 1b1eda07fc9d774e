"""A study's part of the results, before it is written."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from pacdp.experiments import read_experiment
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.study import Study

SMOKE_NOTE = """A smoke test, and no result: data, model, budgets, rounds and targets are those of \
a size for seconds, whatever the title and the paper's numbers say."""
# Told what is being done, and how many more steps are over.
Observer = Callable[[str, int], None]


def quiet(words: str, steps: int) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class WorkItem:
    """What of a study can be made on its own, and then lies in the store."""

    words: str
    steps: int
    """How long it takes beside others, for who waits."""
    make: Callable[[ArtifactStore, Observer], object]


@dataclass(frozen=True, eq=False)
class Section:
    """What is written of a study."""

    study: Study
    text: str
    csv: str
    figure: Figure | None = None
    report: str | None = None
    """A page to look at."""


def describe_data(experiment: str, *, profile: str) -> str:
    """What an experiment is trained on in this size, and for what that stands.

    >>> describe_data("mnist", profile="desk"), describe_data("mnist", profile="smoke")
    ('mnist', 'digits for mnist')
    """
    own = read_experiment(experiment).data.name
    used = read_experiment(experiment, profile=profile).data.name
    return own if used == own else f"{used} for {own}"


def describe_experiment(experiment: str, *, profile: str) -> str:
    """An experiment with what it is trained on, where that is not said by its name.

    >>> [describe_experiment(name, profile="desk") for name in ("heart", "heart-dnn")]
    ['heart', 'heart-dnn: heart']
    """
    data = describe_data(experiment, profile=profile)
    return experiment if data == experiment else f"{experiment}: {data}"
