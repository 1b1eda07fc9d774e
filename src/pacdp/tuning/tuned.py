"""What a search chose, why, and what it expects: a file that a run can take."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pacdp.errors import DataError, InputError
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merged
from pacdp.files import write_whole
from pacdp.settings import Settings, explain


class Tuned(Settings):
    """A plan for one experiment and one method, from public data."""

    experiment: str = Field(description="The experiment it was made for.")
    method: str = Field(description="The method it was made for.")
    track: str = Field(description="public or private-only.")
    changes: dict[str, Any] = Field(description="What it changes in the experiment.")
    chosen: dict[str, Any] = Field(description="The point of the search.")
    why: tuple[dict[str, Any], ...] = Field(description="Each step: what was tried, what it gave.")
    expected: dict[str, Any] = Field(description="Accuracy on the proxy, on fresh seeds.")
    trainings: int = Field(description="How many trainings the search took.")
    proxy: dict[str, str] = Field(description="The public records that it saw.")
    version: str = Field(description="Of the package.")

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_whole(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tuned":
        """Read what :meth:`save` wrote."""
        if not path.is_file():
            raise InputError(f"--plan {path}: there is no such file; pacdp tune makes one")
        try:
            return cls.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError) as error:
            told = explain(error, cls) if isinstance(error, ValidationError) else error.reason
            raise DataError(f"{path}: is no plan of pacdp tune ({told})") from error

    @property
    def summary(self) -> dict[str, Any]:
        """What a plan keeps of it."""
        return self.model_dump(mode="json", exclude={"changes"})


def with_plan(experiment: Experiment, tuned: Tuned) -> Experiment:
    """The experiment as it was tuned."""
    if tuned.experiment != experiment.name:
        raise InputError(f"--plan: was made for {tuned.experiment}, must be for {experiment.name}")
    content = experiment.model_dump(mode="json", exclude_unset=True, exclude={"profiles"})
    made = merged(content, tuned.changes)
    made["methods"] = {**content.get("methods", {}), **tuned.changes.get("methods", {})}
    return Experiment.model_validate({**made, "method": tuned.method, "tuning": tuned.summary})
