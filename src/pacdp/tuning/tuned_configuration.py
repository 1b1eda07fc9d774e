"""What a search chose, why, and what it expects: a file that a run can take."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from pacdp import formatting
from pacdp.arithmetic import (
    add_arithmetic_version,
    refuse_other_arithmetic,
    remove_arithmetic_version,
)
from pacdp.config import Settings, explain_validation_error
from pacdp.errors import DataError, InputError
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import Changes, nest_changes
from pacdp.storage import write_atomically
from pacdp.tuning.search_space import apply_changes


class ExpectedScore(Settings):
    """How good a plan is on public records, under seeds that nothing was chosen by."""

    metric: str
    mean: float
    deviation: float = Field(ge=0)
    seeds: tuple[int, ...]


class PrivacyTerms(Settings):
    """The budgets that a plan was made for, with all that an ε must not stand without."""

    budgets: tuple[float, ...]
    """Each that a client holds; none where a method has no guarantee."""
    delta: float
    adjacency: str
    scope: str
    unit: str

    def __str__(self) -> str:
        if not self.budgets:
            return "no guarantee"
        scope = "" if self.scope == "total" else ", budget per release"
        terms = formatting.format_terms(self.delta, self.adjacency, self.unit)
        return f"ε = {formatting.format_min_median_max(self.budgets)} at {terms}{scope}"


class TunedConfiguration(Settings):
    """A plan for one experiment and one method, from public data.

    >>> from pacdp.experiments import read_experiment
    >>> made = TunedConfiguration(
    ...     experiment="heart", method="fixed", track="private-only",
    ...     changes={"training": {"rounds": 5}}, chosen={"rounds": 5}, why=(),
    ...     expected=ExpectedScore(metric="accuracy", mean=0.9, deviation=0.02, seeds=(5, 6)),
    ...     privacy=PrivacyTerms(
    ...         budgets=(0.1,), delta=1e-5, adjacency="zero-out", scope="total", unit="record"
    ...     ),
    ...     trainings=70, version="0.2.0",
    ...     proxy={"name": "synthetic", "made_by": "clouds", "source": "nobody", "sha256": "0"},
    ... )
    >>> print(made.privacy)
    ε = 0.1 at δ = 1e-05, zero-out
    >>> apply_configuration(read_experiment("heart"), made).training.rounds
    5
    """

    experiment: str = Field(description="The experiment it was made for.")
    method: str = Field(description="The method it was made for.")
    track: str = Field(description="public or private-only.")
    changes: dict[str, Any] = Field(description="What it changes in the experiment.")
    chosen: dict[str, Any] = Field(description="The point of the search.")
    why: tuple[dict[str, Any], ...] = Field(description="Each step: what was tried, what it gave.")
    expected: ExpectedScore = Field(description="How good it is on the proxy, on fresh seeds.")
    privacy: PrivacyTerms | None = Field(None, description="What was promised when it was made.")
    trainings: int = Field(ge=0, description="How many trainings it asked for, all in all.")
    proxy: dict[str, str] = Field(description="The public records that it saw.")
    version: str = Field(description="Of the package.")

    @field_validator("proxy")
    @classmethod
    def _named(cls, given: dict[str, str]) -> dict[str, str]:
        missing = [key for key in ("name", "made_by", "source", "sha256") if key not in given]
        if missing:
            raise ValueError(f"has no {missing[0]}")
        return given

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        content = add_arithmetic_version(json.loads(self.model_dump_json()))
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "TunedConfiguration":
        """Read what :meth:`save` wrote; what another version chose is refused."""
        if not path.is_file():
            raise InputError(f"{path}: there is no such file; pacdp tune makes one")
        try:
            content = json.loads(path.read_text())
            advice = "pacdp tune EXPERIMENT --out FILE makes a new one"
            refuse_other_arithmetic(path, content, mark="changes", advice=advice)
            plain = remove_arithmetic_version(content) if isinstance(content, dict) else content
            return cls.model_validate_json(json.dumps(plain))
        except ValueError as error:
            told = (
                explain_validation_error(error, cls)
                if isinstance(error, ValidationError)
                else error
            )
            raise DataError(f"{path}: is no plan of pacdp tune ({told})") from error

    @property
    def summary(self) -> dict[str, Any]:
        """What a plan keeps of it."""
        return self.model_dump(mode="json", exclude={"changes"})


def apply_configuration(experiment: Experiment, tuned: TunedConfiguration) -> Experiment:
    """The experiment as it was tuned; a plan that was made for another is refused.

    >>> from pacdp.experiments import read_experiment
    >>> mnist = read_experiment("mnist", curves=False)
    >>> apply_configuration(mnist, TunedConfiguration.model_construct(experiment="heart"))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: configuration: was made for heart, must be for mnist
    """
    if tuned.experiment != experiment.name:
        raise InputError(
            f"configuration: was made for {tuned.experiment}, must be for {experiment.name}"
        )
    chosen = {"method": tuned.method, "tuning": tuned.summary}
    try:
        return apply_changes(experiment, {**tuned.changes, **chosen})
    except ValidationError as error:
        raise DataError(
            f"configuration: does not fit ({explain_validation_error(error, Experiment)})"
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError("configuration: is damaged (its changes are no settings)") from error


def find_contradiction(tuned: TunedConfiguration, changes: Changes) -> str | None:
    """The first change that contradicts what was chosen, if any does.

    >>> made = TunedConfiguration.model_construct(changes={"training": {"rounds": 5}})
    >>> find_contradiction(made, ["privacy.epsilon=1.0", "training.rounds=8"])
    'training.rounds=8'
    >>> find_contradiction(made, ["training.rounds=5"])
    """
    nested = nest_changes(changes)
    return next((name for name in nested if _differs(nested[name], tuned.changes)), None)


def _differs(wanted: Any, chosen: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(chosen, Mapping):
        return any(_differs(wanted[key], chosen[key]) for key in wanted if key in chosen)
    return bool(wanted != chosen)
