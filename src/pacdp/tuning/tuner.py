"""The whole search: the plan, then F under it, then the weights, then what may be expected."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pacdp import __version__
from pacdp.data import Dataset
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merge_settings
from pacdp.experiments.prepare import read_data
from pacdp.features import Track, fit_features, refuse_public_overlap
from pacdp.federation.budgets import assign_budgets
from pacdp.methods import PacDp, find_method, import_method
from pacdp.offline import Offline, ProxyTask, fit_curve
from pacdp.offline.configuration import Axis
from pacdp.progress import Progress, ignore_progress
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

# The first is the standard by which the others must not lose.
WEIGHTS = ("size", "tempered", "inverse-noise", "inverse-variance")
# Labels so unevenly dealt out that leaving a client out hurts.
SKEW = 0.1
# Bounds of F's grid, and of a rival's last steps.
_FINE = 9


class _Count:
    """Trainings so far, told before each of them; there may be fewer than were reckoned with."""

    def __init__(self, task: str, progress: Progress) -> None:
        self._task, self._progress = task, progress
        self.done, self._ahead = 0, 0

    def expect(self, ahead: int) -> None:
        """So many are still to come, as far as can be told."""
        self._ahead = ahead

    def begin(self, words: str, number: int = 1) -> None:
        """So many more begin."""
        self._ahead = max(self._ahead, number)
        self._progress(self._task, self.done, self.done + self._ahead, words)
        self.done, self._ahead = self.done + number, self._ahead - number


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
    """Choose a plan for a method on public data, under the experiment's own budgets.

    Every method gets the same settings to be searched, the same seeds and the same sweeps. PAC-DP
    then has F fitted under the plan that was found, and a rival its bound and distance searched
    more finely. The search starts in the middle of everything, or at ``start``. ``only`` names the
    settings that it may move; then nothing else is chosen either, and PAC-DP keeps one bound for
    all. A ``evaluator`` that has seen other searches of the same data saves what they share.

    >>> from pacdp.experiments import read_experiment
    >>> found = tune(read_experiment("heart"), method="fedavg", seeds=1, sweeps=1)
    >>> found.expected.seeds, str(found.privacy)
    ((1,), 'no guarantee')
    """
    name = experiment.method if method is None else method
    kind = find_method(import_method(name))
    for option, number in (("--seeds", seeds), ("--sweeps", sweeps)):
        require_count(option, number)
    private = kind.private
    evaluator = evaluator or CandidateEvaluator(
        read_data(experiment.data, seed=0), progress=progress
    )
    trainings = _Count(f"tuning {experiment.name}", progress)
    dataset, split = evaluator.read
    sizes = split.sizes_by_client if dataset.unit == "record" else split.units_by_client(dataset)
    searched = search_axes(
        *(experiment, name),
        clients=list(sizes.values()),
        most=_directions(experiment, dataset, progress),
    )
    budgets = assign_budgets(experiment.privacy.epsilon, len(sizes), 0)
    # With equal budgets and like sizes every rule is the same.
    unlike = len(set(budgets)) > 1 or max(sizes.values()) > 1.5 * min(sizes.values())
    weighed = private and unlike and only is None
    fits = "curve" in kind.required_settings and only is None
    finer = private and "curve" not in kind.required_settings and only is None
    cells = _cells(seeds) * fits + 2 * _FINE * seeds * finer
    after = (2 * len(_rules(experiment)) * seeds if weighed else 0) + cells + seeds
    begun = {**starting_point(searched), "weights": experiment.server.weights, **(start or {})}
    if only is not None:
        searched = {name: values for name, values in searched.items() if name in only}
    trainings.expect(sweeps * sum(map(len, searched.values())) * seeds + after)

    def score(point: Mapping[str, Any], seeds: Sequence[int]) -> list[float]:
        moved = {key: value for key, value in point.items() if value != begun[key]}
        trainings.begin(format_point(moved) or "where it starts", len(seeds))
        candidate = apply_point(experiment, name, point)
        return evaluator.scores(candidate, candidate.build_method(name), seeds)

    found = search_coordinates(searched, begun, score, seeds=range(seeds), sweeps=sweeps)
    trainings.expect(after)
    if weighed:
        found = _weighed(experiment, name, evaluator, found, range(seeds), trainings)
    if finer:
        around = _finer(found.point)
        found = found.then(
            search_coordinates(around, found.point, score, seeds=range(seeds), sweeps=1)
        )
    made = point_to_changes(name, found.point)
    if fits:
        planned = apply_point(experiment, name, found.point)
        curve = fit_curve(
            _proxy_task(evaluator, planned),
            _grid(found.point["bound"], budgets, seeds),
            progress=lambda *_: trainings.begin("F under the plan"),
        )
        made = merge_settings(made, {"methods": {name: {"curve": curve.model_dump(mode="json")}}})
    final = apply_changes(experiment, made)
    fresh = range(seeds, 2 * seeds)
    trainings.expect(seeds)
    trainings.begin("what may be expected", seeds)
    reached = evaluator.scores(final, final.build_method(name), fresh)
    proxy = evaluator.proxy_task(final).proxy
    progress(f"tuning {experiment.name}", trainings.done, trainings.done)
    return TunedConfiguration(
        experiment=experiment.name,
        method=name,
        track=_track(final),
        changes=made,
        chosen=found.point,
        # As a file has it, so that what is read is what was written.
        why=tuple({**asdict(s), "tried": [asdict(one) for one in s.tried]} for s in found.steps),
        expected=ExpectedScore(
            metric=proxy.data.task.score_name,
            mean=statistics.fmean(reached),
            deviation=statistics.stdev(reached) if seeds > 1 else 0.0,
            seeds=tuple(fresh),
        ),
        privacy=PrivacyTerms(
            budgets=tuple(sorted(set(budgets))) if private else (),
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
            **_learned_from(final, dataset),
        },
        version=__version__,
    )


def _directions(experiment: Experiment, dataset: Dataset, progress: Progress) -> int | None:
    """How many directions a representation of images has; None where there is nothing to choose."""
    settings = experiment.representation
    if settings is None:
        return None
    refuse_public_overlap(settings, dataset)
    ready = fit_features(settings, dataset.shape, for_selection=True, progress=progress)
    return None if ready.projection is None else len(ready.projection.spread)


def _track(experiment: Experiment) -> Track:
    """Whether public records go into the first model or into what it sees."""
    settings = experiment.representation
    seen: Track = "private-only" if settings is None else settings.track
    return seen if experiment.hot_start is None else "public"


def _learned_from(experiment: Experiment, dataset: Dataset) -> dict[str, str]:
    """The other public records: those that the representation was learned from for the search."""
    settings = experiment.representation
    if settings is None or settings.public is None:
        return {}
    made_from = fit_features(settings, dataset.shape, for_selection=True).provenance
    return {"representation": made_from["records"], "representation_sha256": made_from["sha256"]}


def _weighed(
    experiment: Experiment,
    method: str,
    evaluator: CandidateEvaluator,
    found: SearchResult,
    seeds: Sequence[int],
    trainings: _Count,
) -> SearchResult:
    """The weights that gain most, of those that do not lose to sizes where labels are uneven.

    How labels are dealt out among the clients is not known, so a rule must be safe however they
    are. The experiment's own rule is among those tried.
    """
    rules = _rules(experiment)
    scores: dict[float | None, dict[str, list[float]]] = {}
    for skew in (None, SKEW):
        scores[skew] = {}
        for rule in rules:
            candidate = apply_point(experiment, method, {**found.point, "weights": rule})
            made = candidate.build_method(method)
            trainings.begin(f"weights by {rule}", len(seeds))
            scores[skew][rule] = evaluator.scores(candidate, made, seeds, skew=skew)
    uneven = compare_scores(scores[SKEW], WEIGHTS[0])
    safe = [one.value for one in uneven if one.gain >= -one.error]
    standing = found.point["weights"] if found.point["weights"] in safe else WEIGHTS[0]
    alike = compare_scores(scores[None], standing)
    best = max((one for one in alike if one.value in safe), key=lambda one: one.mean)
    chosen = best.value if best.gain > best.error else standing
    steps = (
        SearchStep("weights, labels uneven", WEIGHTS[0], " or ".join(safe), uneven),
        SearchStep("weights", found.point["weights"], chosen, alike),
    )
    return SearchResult(
        {**found.point, "weights": chosen},
        (*found.steps, *steps),
        found.trainings + 2 * len(rules) * len(seeds),
    )


def _rules(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys([*WEIGHTS, experiment.server.weights]))


def _proxy_task(evaluator: CandidateEvaluator, planned: Experiment) -> ProxyTask:
    """What the grid of F is trained under: the plan that was found."""
    made = planned.build_method(PacDp.name)
    assert isinstance(made, PacDp)
    return replace(
        evaluator.proxy_task(planned),
        recipe=planned.recipe,
        schedule=made.schedule,
    )


def _finer(point: Mapping[str, Any]) -> dict[str, list[float]]:
    """A rival's bound and distance, as finely as the grid of F has its bounds."""
    return {
        setting: [float(f"{point[setting] * factor:.4g}") for factor in np.logspace(-1, 1, _FINE)]
        for setting in ("bound", "distance")
        if setting in point
    }


def _grid(bound: float, budgets: Sequence[float], seeds: int) -> Offline:
    """Bounds a decade around the one found, and budgets half a decade around those held."""
    return Offline(
        budgets=Axis(low=min(budgets) / 3, high=max(budgets) * 3, count=5),
        bounds=Axis(low=bound / 10, high=bound * 10, count=_FINE),
        seeds=seeds,
    )


def _cells(seeds: int) -> int:
    """How many trainings F takes: its grid, and the fresh seeds on which regret is measured."""
    grid = _grid(1.0, [1.0], seeds)
    budgets, bounds = (len(grid.axis(axis)) for axis in ("budgets", "bounds"))
    return budgets * (bounds + 2) * grid.seeds
