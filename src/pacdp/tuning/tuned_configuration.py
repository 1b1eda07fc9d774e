"""Tuned configurations: what a search has chosen and why, as a file for later runs."""

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
    """The score on public records, with seeds that were not used in the search."""

    metric: str
    mean: float
    deviation: float = Field(ge=0)
    seeds: tuple[int, ...]


class PrivacyTerms(Settings):
    """The budgets that a configuration was tuned for, with the terms that define them."""

    budgets: tuple[float, ...]
    """The different budgets of the clients; empty if the method has no guarantee."""
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
    """Hyperparameters for one experiment and one method, chosen on public data.

    >>> from pacdp.experiments import read_experiment
    >>> tuned = TunedConfiguration(
    ...     experiment="heart", method="fixed", track="private-only",
    ...     changes={"training": {"rounds": 5}}, chosen={"rounds": 5}, why=(),
    ...     expected=ExpectedScore(metric="accuracy", mean=0.9, deviation=0.02, seeds=(5, 6)),
    ...     privacy=PrivacyTerms(
    ...         budgets=(0.1,), delta=1e-5, adjacency="zero-out", scope="total", unit="record"
    ...     ),
    ...     trainings=70, version="0.2.0",
    ...     proxy={"name": "synthetic", "made_by": "clouds", "source": "nobody", "sha256": "0"},
    ... )
    >>> print(tuned.privacy)
    ε = 0.1 at δ = 1e-05, zero-out
    >>> apply_configuration(read_experiment("heart"), tuned).training.rounds
    5
    """

    experiment: str = Field(description="Experiment it was tuned for.")
    method: str = Field(description="Method it was tuned for.")
    track: str = Field(description="public or private-only.")
    changes: dict[str, Any] = Field(description="Changes of the experiment.")
    chosen: dict[str, Any] = Field(description="Final point of the search.")
    why: tuple[dict[str, Any], ...] = Field(description="Steps: values and their scores.")
    expected: ExpectedScore = Field(description="Score on the proxy, with fresh seeds.")
    privacy: PrivacyTerms | None = Field(None, description="Budgets it was tuned for.")
    trainings: int = Field(ge=0, description="Number of trainings.")
    proxy: dict[str, str] = Field(description="Public records that were used.")
    version: str = Field(description="Version of the package.")

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, given: dict[str, str]) -> dict[str, str]:
        missing = [key for key in ("name", "made_by", "source", "sha256") if key not in given]
        if missing:
            raise ValueError(f"has no {missing[0]}")
        return given

    def save(self, path: Path) -> None:
        """Write the configuration as JSON."""
        content = add_arithmetic_version(json.loads(self.model_dump_json()))
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "TunedConfiguration":
        """Read what :meth:`save` wrote; a file with another arithmetic is refused."""
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
        """The part that plans record."""
        return self.model_dump(mode="json", exclude={"changes"})


def apply_configuration(experiment: Experiment, tuned: TunedConfiguration) -> Experiment:
    """Apply a configuration to its experiment; one for another experiment is refused.

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
    """Return the first change that contradicts a configuration, or None.

    >>> tuned = TunedConfiguration.model_construct(changes={"training": {"rounds": 5}})
    >>> find_contradiction(tuned, ["privacy.epsilon=1.0", "training.rounds=8"])
    'training.rounds=8'
    >>> find_contradiction(tuned, ["training.rounds=5"])
    """
    nested = nest_changes(changes)
    return next((name for name in nested if _differs(nested[name], tuned.changes)), None)


def _differs(change: Any, chosen: Any) -> bool:
    if isinstance(change, Mapping) and isinstance(chosen, Mapping):
        return any(_differs(change[key], chosen[key]) for key in change if key in chosen)
    return bool(change != chosen)
