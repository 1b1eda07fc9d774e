"""Score candidates by training the same federation on public records."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.experiments import Experiment
from pacdp.experiments.offline import adapt_recipe, make_proxy_task
from pacdp.federation import Plan, make_plan, simulate
from pacdp.methods import Method
from pacdp.offline import ProxyTask
from pacdp.offline.grid_simulation import can_stack_plan, planned_bounds, score_plans
from pacdp.progress import Progress, ignore_progress


class CandidateEvaluator:
    """Trains candidates on public records, and keeps proxy tasks and scores for reuse.

    Of the private records only the clients' sizes are used. Scores are shared between methods whose
    training is the same: PAC-DP with one bound for all clients trains as a fixed bound does.

    >>> from pacdp.experiments import read_experiment
    >>> from pacdp.experiments.prepare import read_data
    >>> heart = read_experiment("heart")
    >>> CandidateEvaluator(read_data(heart.data, seed=0)).proxy_task(heart).proxy.data.name
    'synthetic-for-heart'
    """

    def __init__(
        self, read: tuple[Dataset, Partition], *, progress: Progress = ignore_progress
    ) -> None:
        self.read, self._progress = read, progress
        self._proxy_tasks: dict[str, ProxyTask] = {}
        self._scores: dict[str, list[float]] = {}

    def proxy_task(
        self, experiment: Experiment, *, skew: float | None = None, seeds: Sequence[int] = ()
    ) -> ProxyTask:
        """Return the task that a candidate is trained on.

        With ``skew`` the labels are distributed by Dirichlet(skew), or in two shards of one class
        per client if that leaves a client without records under any of the seeds. Candidates with
        the same features and initial model share a task.
        """
        key = _task_key(experiment, skew, seeds)
        if key not in self._proxy_tasks:
            task = make_proxy_task(experiment, read=self.read, progress=self._progress)
            self._proxy_tasks[key] = task if skew is None else _skew_labels(task, skew, seeds)
        return self._proxy_tasks[key]

    def scores(
        self,
        experiment: Experiment,
        method: Method | str,
        seeds: Sequence[int],
        *,
        skew: float | None = None,
    ) -> list[float]:
        """Score a candidate on held-out public records, once per seed."""
        if isinstance(method, str):
            method = experiment.build_method(method)
        task = self.proxy_task(experiment, skew=skew, seeds=seeds)
        records = [task.records(seed) for seed in seeds]
        recipe = adapt_recipe(experiment.recipe, *self.read)
        recipe = recipe.model_copy(update={"hot_start": None})
        plans = [make_plan(recipe, method, task.population(seed), seed) for seed in seeds]
        # Adapted only now, since a curve was fitted under the plan of the private task.
        plans = [
            plan.model_copy(update={"training": task.adapt_training(plan.training)})
            for plan in plans
        ]
        initial = None if task.initial is None else dict(task.initial)
        stacked = method.private and can_stack_plan(plans[0])
        key = _task_key(experiment, skew, seeds) + _training_key(plans, stacked=stacked)
        if key not in self._scores and stacked:
            self._scores[key] = score_plans(plans, records, initial=initial)
        elif key not in self._scores:
            results = [
                simulate(plan, *data, initial=initial, evaluate_every=plan.rounds)
                for plan, data in zip(plans, records, strict=True)
            ]
            self._scores[key] = [result.plan.task.score(result.metrics) for result in results]
        return self._scores[key]


def _task_key(experiment: Experiment, skew: float | None, seeds: Sequence[int]) -> str:
    """Identify the records and the initial model of a candidate."""
    # The initial model depends on the architecture, for example on whether there is a bias.
    initial = [] if experiment.hot_start is None else [experiment.hot_start, experiment.model]
    settings = [
        value and value.model_dump(mode="json") for value in (experiment.representation, *initial)
    ]
    # Which distribution of labels is possible depends on all seeds.
    labels = None if skew is None else [skew, *seeds]
    return json.dumps([labels, experiment.offline.proxy, *settings])


def _training_key(plans: Sequence[Plan], *, stacked: bool) -> str:
    """Identify a training; stacked plans depend on their method only through its bounds."""
    content = [
        [
            plan.model_dump(mode="json", exclude={"method", "settings"}),
            *([plan.label, planned_bounds(plan)] if stacked else [plan.method, plan.settings]),
        ]
        for plan in plans
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _skew_labels(task: ProxyTask, skew: float, seeds: Sequence[int]) -> ProxyTask:
    skewed = replace(task, partition="dirichlet", settings={"alpha": skew})
    try:
        for seed in seeds:
            skewed.records(seed)
    except InputError:
        return replace(task, partition="shards", settings={"per_client": 2})
    return skewed
