"""Tuning: search the hyperparameters, choose the weights, fit F, and estimate the final score."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pacdp import __version__
from pacdp.data import Dataset
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merge_settings
from pacdp.experiments.offline import adapt_recipe
from pacdp.experiments.prepare import read_data
from pacdp.features import fit_features, refuse_public_overlap
from pacdp.federation import Population
from pacdp.federation.budgets import assign_budgets
from pacdp.methods import PacDp, find_method, import_method
from pacdp.offline import Offline, fit_curve
from pacdp.offline.configuration import Axis
from pacdp.progress import Progress, ignore_progress
from pacdp.stats import SampleStats
from pacdp.tuning.coordinate_search import (
    SearchResult,
    SearchStep,
    compare_scores,
    search_coordinates,
)
from pacdp.tuning.evaluation import CandidateEvaluator
from pacdp.tuning.search_space import (
    apply_changes,
    apply_point,
    format_point,
    point_to_changes,
    search_axes,
    starting_point,
)
from pacdp.tuning.tuned_configuration import ExpectedScore, PrivacyTerms, TunedConfiguration
from pacdp.validation import require_count

# The first rule is the reference that the others must not fall behind.
WEIGHTS = ("size", "tempered", "inverse-noise", "inverse-variance")
# Dirichlet parameter of labels so uneven that ignoring a client costs accuracy.
SKEW = 0.1
# Bounds in the grid of F, and values in the final search of a baseline's bound.
_FINE = 9


class _TrainingCounter:
    """Counts trainings and reports them as they begin; the total is an estimate."""

    def __init__(self, task: str, progress: Progress) -> None:
        self._task, self._progress = task, progress
        self.done = self._remaining = 0

    def expect(self, remaining: int) -> None:
        """Correct the estimate of how many trainings remain."""
        self._remaining = remaining

    def begin(self, note: str, count: int = 1) -> None:
        """Report that some trainings begin."""
        self._remaining = max(self._remaining, count)
        self._progress(self._task, self.done, self.done + self._remaining, note)
        self.done, self._remaining = self.done + count, self._remaining - count

    def finish(self) -> None:
        """Report that all trainings are over."""
        self._progress(self._task, self.done, self.done)


def tune(
    experiment: Experiment,
    *,
    method: str | None = None,
    seeds: int = 5,
    sweeps: int = 2,
    start: Mapping[str, Any] | None = None,
    only: Sequence[str] | None = None,
    evaluator: CandidateEvaluator | None = None,
    progress: Progress = ignore_progress,
) -> TunedConfiguration:
    """Choose the hyperparameters of a method on public data, under the experiment's own budgets.

    Every method gets the same search space, seeds and number of sweeps. PAC-DP then gets a curve F
    that is fitted under the chosen hyperparameters; a baseline gets a finer search of its bound and
    distance instead. The search starts in the middle of the search space, or at ``start``. ``only``
    restricts it to some settings; then neither weights nor F are chosen, and PAC-DP uses one bound
    for all clients. An ``evaluator`` that was used for other searches on the same data reuses their
    scores.

    >>> from pacdp.experiments import read_experiment
    >>> tuned = tune(read_experiment("heart"), method="fedavg", seeds=1, sweeps=1)
    >>> tuned.expected.seeds, str(tuned.privacy)
    ((1,), 'no guarantee')
    """
    name = experiment.method if method is None else method
    kind = find_method(import_method(name))
    require_count("--seeds", seeds)
    require_count("--sweeps", sweeps)
    evaluator = evaluator or CandidateEvaluator(
        read_data(experiment.data, seed=0), progress=progress
    )
    trainings = _TrainingCounter(f"tuning {experiment.name}", progress)
    dataset, split = evaluator.read
    population = Population.of(dataset, split)
    sizes = population.units or population.sizes
    axes = search_axes(
        experiment,
        name,
        clients=list(sizes.values()),
        most=_count_directions(experiment, dataset, progress),
    )
    budgets = assign_budgets(experiment.privacy.epsilon, len(sizes), 0)
    if experiment.privacy.records is not None:
        # F is evaluated at the largest level of each client's records, which its budget caps.
        largest = experiment.privacy.records.levels[-1]
        budgets = [min(budget, largest) for budget in budgets]
    # With equal budgets and similar sizes all rules give nearly the same weights.
    unequal = len(set(budgets)) > 1 or max(sizes.values()) > 1.5 * min(sizes.values())
    choose_weights = kind.private and unequal and only is None
    fit = "curve" in kind.required_settings and only is None
    refine = kind.private and "curve" not in kind.required_settings and only is None
    remaining = seeds + _count_cells(seeds) * fit + 2 * _FINE * seeds * refine
    remaining += 2 * len(_weight_rules(experiment)) * seeds * choose_weights
    origin = {**starting_point(axes), "weights": experiment.server.weights, **(start or {})}
    if only is not None:
        axes = {setting: values for setting, values in axes.items() if setting in only}
    trainings.expect(sweeps * sum(map(len, axes.values())) * seeds + remaining)

    def score(point: Mapping[str, Any], seeds: Sequence[int]) -> list[float]:
        moved = {key: value for key, value in point.items() if value != origin[key]}
        trainings.begin(format_point(moved) or "starting point", len(seeds))
        return evaluator.scores(apply_point(experiment, name, point), name, seeds)

    result = search_coordinates(axes, origin, score, seeds=range(seeds), sweeps=sweeps)
    trainings.expect(remaining)
    if choose_weights:
        result = _choose_weights(experiment, name, evaluator, result, range(seeds), trainings)
    if refine:
        axes = _refine_axes(result.point)
        result = result.then(
            search_coordinates(axes, result.point, score, seeds=range(seeds), sweeps=1)
        )
    changes = point_to_changes(name, result.point)
    if fit:
        planned = apply_point(experiment, name, result.point)
        pac_dp = planned.build_method(PacDp.name)
        assert isinstance(pac_dp, PacDp)
        curve = fit_curve(
            replace(
                evaluator.proxy_task(planned),
                recipe=adapt_recipe(planned.recipe, dataset, split),
                schedule=pac_dp.schedule,
            ),
            _curve_grid(result.point["bound"], budgets, seeds),
            progress=lambda *_: trainings.begin("fitting F"),
        )
        changes = merge_settings(
            changes, {"methods": {name: {"curve": curve.model_dump(mode="json")}}}
        )
    tuned = apply_changes(experiment, changes)
    fresh = range(seeds, 2 * seeds)
    trainings.expect(seeds)
    trainings.begin("expected score", seeds)
    stats = SampleStats.of(evaluator.scores(tuned, name, fresh))
    proxy = evaluator.proxy_task(tuned).proxy
    trainings.finish()
    return TunedConfiguration(
        experiment=experiment.name,
        method=name,
        track=tuned.track,
        changes=changes,
        chosen=result.point,
        # Lists as in JSON, so that a configuration equals the one that is read back.
        why=tuple(
            {**asdict(step), "tried": [asdict(trial) for trial in step.tried]}
            for step in result.steps
        ),
        expected=ExpectedScore(
            metric=proxy.data.task.score_name,
            mean=stats.mean,
            deviation=stats.deviation,
            seeds=tuple(fresh),
        ),
        privacy=PrivacyTerms(
            budgets=tuple(sorted(set(budgets))) if kind.private else (),
            delta=experiment.privacy.delta,
            adjacency=experiment.privacy.adjacency,
            scope=experiment.privacy.scope,
            unit=dataset.unit,
        ),
        trainings=trainings.done,
        proxy={
            "name": proxy.data.name,
            "made_by": proxy.made_by,
            "source": str(proxy.data.provenance),
            "sha256": proxy.data.train.digest,
            **_describe_features(tuned, dataset),
        },
        version=__version__,
    )


def _count_directions(experiment: Experiment, dataset: Dataset, progress: Progress) -> int | None:
    """Count the directions that features can be projected on; None if there is no projection."""
    settings = experiment.representation
    if settings is None:
        return None
    refuse_public_overlap(settings, dataset)
    pipeline = fit_features(settings, dataset.shape, for_selection=True, progress=progress)
    return None if pipeline.projection is None else len(pipeline.projection.spread)


def _describe_features(experiment: Experiment, dataset: Dataset) -> dict[str, str]:
    """Name the public records that the features were learned from during the search."""
    settings = experiment.representation
    if settings is None or settings.public is None:
        return {}
    provenance = fit_features(settings, dataset.shape, for_selection=True).provenance
    return {"representation": provenance["records"], "representation_sha256": provenance["sha256"]}


def _choose_weights(
    experiment: Experiment,
    method: str,
    evaluator: CandidateEvaluator,
    result: SearchResult,
    seeds: Sequence[int],
    trainings: _TrainingCounter,
) -> SearchResult:
    """Choose the best weights among the rules that do not lose to sizes when labels are uneven.

    How labels are distributed among the clients is unknown, so a rule must be safe for any
    distribution. The experiment's own rule is among the candidates.
    """
    rules = _weight_rules(experiment)
    scores: dict[float | None, dict[str, list[float]]] = {None: {}, SKEW: {}}
    for skew, by_rule in scores.items():
        for rule in rules:
            candidate = apply_point(experiment, method, {**result.point, "weights": rule})
            trainings.begin(f"weights by {rule}", len(seeds))
            by_rule[rule] = evaluator.scores(candidate, method, seeds, skew=skew)
    before, reference = result.point["weights"], WEIGHTS[0]
    uneven = compare_scores(scores[SKEW], reference)
    safe = [trial.value for trial in uneven if trial.gain >= -trial.error]
    fallback = before if before in safe else reference
    even = compare_scores(scores[None], fallback)
    best = max((trial for trial in even if trial.value in safe), key=lambda trial: trial.mean)
    chosen = best.value if best.gain > best.error else fallback
    steps = (
        SearchStep("weights, labels uneven", reference, " or ".join(safe), uneven),
        SearchStep("weights", before, chosen, even),
    )
    point = {**result.point, "weights": chosen}
    return result.then(SearchResult(point, steps, 2 * len(rules) * len(seeds)))


def _weight_rules(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys([*WEIGHTS, experiment.server.weights]))


def _refine_axes(point: Mapping[str, Any]) -> dict[str, list[float]]:
    """Space a baseline's bounds and distances as finely as the bounds in the grid of F."""
    return {
        setting: [float(f"{point[setting] * factor:.4g}") for factor in np.logspace(-1, 1, _FINE)]
        for setting in ("bound", "distance")
        if setting in point
    }


def _curve_grid(bound: float, budgets: Sequence[float], seeds: int) -> Offline:
    """Make a grid one decade around a bound and half a decade around the clients' budgets."""
    return Offline(
        budgets=Axis(low=min(budgets) / 3, high=max(budgets) * 3, count=5),
        bounds=Axis(low=bound / 10, high=bound * 10, count=_FINE),
        seeds=seeds,
    )


def _count_cells(seeds: int) -> int:
    """Count the trainings for F: its grid, and the fresh seeds on which regret is measured."""
    grid = _curve_grid(1.0, [1.0], seeds)
    budgets, bounds = (len(grid.axis(axis)) for axis in ("budgets", "bounds"))
    return budgets * (bounds + 2) * grid.seeds
