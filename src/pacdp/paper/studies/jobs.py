"""From a study to single runs: which experiment, which method, which seed."""

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
from pacdp.paper.studies.study import Reading, Study, load_study_experiment

# What the authors themselves ran, where it is not the method under a budget per release.
PUBLISHED = {"nbafl": "nbafl-original"}
# Methods that say themselves what a whole run costs, or have no ε: both readings are one.
OWN_ACCOUNT = ("rpdp-fl", "fedavg", "nbafl-original", "noise-once", "non-private-quantile")
# Gives the curve of an experiment.
Fit = Callable[[Experiment], Curve]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    arm: str
    reading: Reading
    epsilon: float | None
    """The budget of a sweep; None for the experiment's own."""
    seed: int


@dataclass(frozen=True)
class Job:
    """All that a run is made from."""

    experiment: Experiment
    method: Method
    seed: int

    @property
    def key(self) -> str:
        """Tells this run from any other: equal jobs are run once."""
        left_out = {"description", "profiles", "methods", "offline", "method", "tuning"}
        if self.experiment.representation is None:
            left_out.add("representation")
        content = {
            "experiment": self.experiment.model_dump(mode="json", exclude=left_out),
            "method": [self.method.name, self.method.model_dump(mode="json")],
            "seed": self.seed,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"{self.experiment.name}-{self.method.name}-{self.seed}-{digest[:12]}"


def list_runs(study: Study) -> list[StudyRun]:
    """Every run: each arm under each reading, and the sweep over budgets, certified.

    >>> from pacdp.paper.studies.study import read_study
    >>> found = list_runs(read_study("heart", profile="smoke"))
    >>> found[0]
    StudyRun(arm='pac-dp', reading='as-published', epsilon=None, seed=0)
    """
    seeds = range(study.seeds)
    found = [
        StudyRun(arm, reading, None, seed)
        for arm in study.arms
        for reading in study.arm(arm).readings
        for seed in seeds
    ]
    return found + [
        StudyRun(arm, "certified", epsilon, seed)
        for arm in study.arms
        if "certified" in study.arm(arm).readings
        for epsilon in study.epsilons
        for seed in seeds
    ]


def build_job(study: Study, cell: StudyRun, *, profile: str, fit: Fit) -> Job:
    """What a cell runs; a curve is asked for where the method needs one."""
    arm = study.arm(cell.arm)
    name, changes = arm.method, merge_settings(study.changes, arm.changes)
    if cell.reading == "as-published":
        name = PUBLISHED.get(name, name)
        if name not in OWN_ACCOUNT:
            changes = merge_settings(changes, {"privacy": {"scope": "per-release"}})
    if cell.epsilon is not None:
        changes = merge_settings(changes, {"privacy": {"epsilon": cell.epsilon}})
    experiment = load_study_experiment(study.experiment, changes, profile=profile)
    if (
        experiment.privacy.scope == "per-release"
        and max(budget_shares(experiment.privacy.epsilon)) < 1
    ):
        # The published formula, where it is proved; elsewhere the exact noise of a release.
        classic = experiment.privacy.model_copy(update={"accountant": "basic"})
        experiment = experiment.model_copy(update={"privacy": classic})
    settings = dict(arm.settings)
    if "curve" in find_method(name).required_settings and study.fit:
        settings["curve"] = fit(experiment)
    if settings.get("clipping_bound") == "proxy":
        settings["clipping_bound"] = select_fixed_bound(
            fit(experiment), budget_shares(experiment.privacy.epsilon)
        )
    return Job(experiment, experiment.build_method(name, settings), cell.seed)


def budget_shares(epsilon: Any) -> Mapping[float, float]:
    """Budgets and the share of clients that hold each.

    >>> budget_shares(0.1), budget_shares((0.5, 0.1, 0.1, 0.1))
    ({0.1: 1.0}, {0.5: 0.25, 0.1: 0.75})
    """
    if isinstance(epsilon, Levels):
        return dict(zip(epsilon.levels, epsilon.shares, strict=True))
    if isinstance(epsilon, Sequence):
        return {value: epsilon.count(value) / len(epsilon) for value in dict.fromkeys(epsilon)}
    return {float(epsilon): 1.0}


def select_fixed_bound(curve: Curve, budgets: Mapping[float, float]) -> float:
    """The bound of the grid that does best on the proxy for all: what fixed C gets by tuning.

    The scores of the curve's own grid (λ(t) included), between its budgets by ln ε, weighed by who
    holds what.

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
