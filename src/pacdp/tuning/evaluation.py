"""A candidate tried out: the same federation, with public records in the clients' hands."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from pacdp.config import Settings
from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.experiments import Experiment
from pacdp.experiments.offline import make_proxy_task
from pacdp.federation import Plan, make_plan, simulate
from pacdp.methods import Method
from pacdp.offline import ProxyTask
from pacdp.offline.grid_simulation import can_stack_plan, planned_bounds, score_plans
from pacdp.progress import Progress, ignore_progress


class CandidateEvaluator:
    """Public records as each candidate's representation shows them, made once for each.

    Of the private records only the clients' sizes are known here. What has been scored is not
    trained again, whichever method asks: a search of PAC-DP with one bound for all passes where one
    of a fixed bound does.

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
        self._settings: dict[str, ProxyTask] = {}
        self._scores: dict[str, list[float]] = {}

    def proxy_task(
        self, experiment: Experiment, *, skew: float | None = None, seeds: Sequence[int] = ()
    ) -> ProxyTask:
        """What a candidate is tried under; with ``skew`` labels are dealt out by Dirichlet(skew).

        Where that leaves a client without records under any of the seeds, each has two shards of
        one class. All that does not change the records is the same setting.
        """
        key = _key(experiment, skew, seeds)
        if key not in self._settings:
            made = make_proxy_task(experiment, read=self.read, progress=self._progress)
            self._settings[key] = made if skew is None else _uneven(made, skew, seeds)
        return self._settings[key]

    def scores(
        self,
        experiment: Experiment,
        method: Method,
        seeds: Sequence[int],
        *,
        skew: float | None = None,
    ) -> list[float]:
        """How good a candidate is, seed by seed, on public records that it was not trained on."""
        proxy_task = self.proxy_task(experiment, skew=skew, seeds=seeds)
        records = [proxy_task.records(seed) for seed in seeds]
        plans = [self._plan(proxy_task, experiment, method, seed) for seed in seeds]
        initial = None if proxy_task.initial is None else dict(proxy_task.initial)
        together = method.private and can_stack_plan(plans[0])
        key = _key(experiment, skew, seeds) + _trained(plans, together=together)
        if key not in self._scores:
            score = score_plans if together else _one_by_one
            self._scores[key] = score(plans, records, initial=initial)
        return self._scores[key]

    @staticmethod
    def _plan(proxy_task: ProxyTask, experiment: Experiment, method: Method, seed: int) -> Plan:
        recipe = experiment.recipe.model_copy(update={"hot_start": None})
        made = make_plan(recipe, method, proxy_task.population(seed), seed)
        # Only then: a curve knows the plan of the task.
        return made.model_copy(update={"training": proxy_task.adapt_training(made.training)})


def _one_by_one(
    plans: Sequence[Plan],
    records: Sequence[tuple[Dataset, Partition]],
    *,
    initial: dict[str, Tensor] | None,
) -> list[float]:
    """The scores of plans that cannot be one program."""
    return [
        plan.task.score(simulate(plan, *own, initial=initial, evaluate_every=plan.rounds).metrics)
        for plan, own in zip(plans, records, strict=True)
    ]


def _key(experiment: Experiment, skew: float | None, seeds: Sequence[int]) -> str:
    """Tells settings with other records, or another first model, apart."""
    parts: list[Settings | None] = [experiment.representation]
    if experiment.hot_start is not None:
        # A first model has the weights of the model: with a bias or without.
        parts += [experiment.hot_start, experiment.model]
    shown = [one and one.model_dump(mode="json") for one in parts]
    # Which records clients can have depends on all the seeds, where labels are dealt out unevenly.
    dealt = None if skew is None else [skew, *seeds]
    return json.dumps([dealt, experiment.offline.proxy, *shown])


def _trained(plans: Sequence[Plan], *, together: bool) -> str:
    """Tells apart all of plans that training sees; of a method, together, that is its bounds."""
    seen = [
        [
            plan.model_dump(mode="json", exclude={"method", "settings"}),
            *([plan.label, planned_bounds(plan)] if together else [plan.method, plan.settings]),
        ]
        for plan in plans
    ]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _uneven(proxy_task: ProxyTask, skew: float, seeds: Sequence[int]) -> ProxyTask:
    drawn = replace(proxy_task, partition="dirichlet", settings={"alpha": skew})
    try:
        for seed in seeds:
            drawn.records(seed)
    except InputError:
        return replace(proxy_task, partition="shards", settings={"per_client": 2})
    return drawn
