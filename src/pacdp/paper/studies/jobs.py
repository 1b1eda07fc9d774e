"""The runs of a study, and the experiment, method and seed of each."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pacdp.curve import Curve
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merge_settings
from pacdp.federation.budgets import Levels
from pacdp.methods import Method, find_method
from pacdp.paper.studies.study import Reading, Study, load_study_experiment, update_sections

# Variants as their authors published them, where these differ from a budget per release.
PUBLISHED = {"nbafl": "nbafl-original"}
# Methods with their own accounting of the whole run, or without ε: both readings are the same.
OWN_ACCOUNT = (
    *("rpdp-fl", "rpdp-fl-original", "fedavg", "nbafl-original", "noise-once"),
    "non-private-quantile",
)
# Returns the curve of an experiment.
Fit = Callable[[Experiment], Curve]


@dataclass(frozen=True)
class StudyRun:
    """A run of a study: arm, reading, budget and seed."""

    arm: str
    reading: Reading
    epsilon: float | None
    """Budget of a sweep; None for the budgets of the experiment."""
    seed: int


@dataclass(frozen=True)
class Job:
    """Everything that determines the result of a run."""

    experiment: Experiment
    method: Method
    seed: int

    @property
    def key(self) -> str:
        """File name of the result; equal jobs are run once."""
        excluded = {"description", "profiles", "methods", "offline", "method", "tuning"}
        if self.experiment.representation is None:
            excluded.add("representation")
        content = {
            "experiment": self.experiment.model_dump(mode="json", exclude=excluded),
            "method": [self.method.name, self.method.model_dump(mode="json")],
            "seed": self.seed,
        }
        digest = hash_text(json.dumps(content, sort_keys=True))
        return f"{self.experiment.name}-{self.method.name}-{self.seed}-{digest}"


def hash_text(text: str) -> str:
    """Return a short digest for the name of a file.

    >>> hash_text("settings")
    'cde0fb0dec14'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def list_runs(study: Study) -> list[StudyRun]:
    """List all runs: each arm under each reading, and the certified sweep over budgets.

    >>> from pacdp.paper.studies.study import read_study
    >>> runs = list_runs(read_study("heart", profile="smoke"))
    >>> runs[0]
    StudyRun(arm='pac-dp', reading='as-published', epsilon=None, seed=0)
    """
    arms = {arm: study.arm(arm).readings for arm in study.arms}
    cells: list[tuple[str, Reading, float | None]] = [
        (arm, reading, None) for arm, readings in arms.items() for reading in readings
    ]
    for arm, readings in arms.items():
        if "certified" in readings:
            cells += [(arm, "certified", epsilon) for epsilon in study.epsilons]
    return [StudyRun(*cell, seed) for cell in cells for seed in range(study.seeds)]


def build_job(study: Study, run: StudyRun, *, profile: str, fit: Fit) -> Job:
    """Build the job of a run; ``fit`` is called if the method needs a curve."""
    arm = study.arm(run.arm)
    name, changes = arm.method, merge_settings(study.changes, arm.changes)
    if run.reading == "as-published":
        name = PUBLISHED.get(name, name)
        if name not in OWN_ACCOUNT:
            changes = merge_settings(changes, {"privacy": {"scope": "per-release"}})
    if run.epsilon is not None:
        changes = merge_settings(changes, {"privacy": {"epsilon": run.epsilon}})
    experiment = load_study_experiment(study.experiment, changes, profile=profile)
    budgets = budget_shares(experiment.privacy.epsilon)
    if experiment.privacy.scope == "per-release" and max(budgets) < 1:
        # The published formula where it is proved, and otherwise the exact noise of a release.
        experiment = update_sections(experiment, {"privacy": {"accountant": "basic"}})
    settings = dict(arm.settings)
    if "curve" in find_method(name).required_settings and study.fit:
        settings["curve"] = fit(experiment)
    if settings.get("clipping_bound") == "proxy":
        settings["clipping_bound"] = select_fixed_bound(fit(experiment), budgets)
    return Job(experiment, experiment.build_method(name, settings), run.seed)


def budget_shares(epsilon: Any) -> Mapping[float, float]:
    """Return the share of clients that hold each budget.

    >>> budget_shares(0.1), budget_shares((0.5, 0.1, 0.1, 0.1))
    ({0.1: 1.0}, {0.5: 0.25, 0.1: 0.75})
    """
    if isinstance(epsilon, Levels):
        return dict(zip(epsilon.levels, epsilon.shares, strict=True))
    if isinstance(epsilon, Sequence):
        return {value: epsilon.count(value) / len(epsilon) for value in dict.fromkeys(epsilon)}
    return {float(epsilon): 1.0}


def select_fixed_bound(curve: Curve, budgets: Mapping[float, float]) -> float:
    """Select the bound of the grid with the best mean score on the proxy: a tuned fixed C.

    Scores are those of the curve's grid (including λ(t)), interpolated in ln ε and weighted by the
    share of clients that hold each budget.

    >>> from pacdp.curve import CurveEvidence
    >>> evidence = CurveEvidence(
    ...     scores=[[[0.9, 0.5], [0.5, 0.6]]], budgets=[0.1, 1], bounds=[0.1, 1]
    ... )
    >>> curve = Curve(family="power", coefficients=(1.0, 0.0), evidence=evidence)
    >>> select_fixed_bound(curve, {0.1: 0.5, 1.0: 0.5}), select_fixed_bound(curve, {1.0: 1.0})
    (0.1, 1.0)
    """
    evidence = curve.evidence
    scores = np.mean(evidence.scores, axis=0)
    known = np.log(evidence.budgets)
    expected = sum(
        share * np.array([np.interp(np.log(epsilon), known, column) for column in scores.T])
        for epsilon, share in budgets.items()
    )
    return float(evidence.bounds[int(np.argmax(expected))])
