"""The whole search: the plan, then F under it, then the weights, then what may be expected."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pacdp import __version__
from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.experiments import Experiment
from pacdp.experiments.experiment import merged
from pacdp.experiments.prepare import read_data
from pacdp.federation.budgets import deal_budgets
from pacdp.methods import METHODS
from pacdp.methods.pac_dp import PacDp
from pacdp.offline import Offline, Setting, fit_curve
from pacdp.offline.configuration import Axis
from pacdp.representation import fitted, refuse_private
from pacdp.tuning.point import axes, changed, changes, middle, told
from pacdp.tuning.rehearse import Stage
from pacdp.tuning.search import Found, Step, compared, search
from pacdp.tuning.tuned import Tuned

Observer = Callable[[str], None]

# The first is the standard by which the others must not lose.
WEIGHTS = ("size", "tempered", "inverse-noise", "inverse-variance")
# Labels so unevenly dealt out that leaving a client out hurts.
SKEW = 0.1


def tune(
    experiment: Experiment,
    *,
    method: str | None = None,
    seeds: int = 5,
    sweeps: int = 2,
    read: tuple[Dataset, Partition] | None = None,
    observe: Observer = lambda words: None,
) -> Tuned:
    """Choose a plan for a method on public data, under the experiment's own budgets.

    Every method gets the same settings to be searched, the same seeds and the same sweeps. PAC-DP
    then has F fitted under the plan that was found.
    """
    name = experiment.method if method is None else method
    if name not in METHODS:
        raise InputError(f"--method {name}: unknown; there are {', '.join(METHODS)}")
    known = read or read_data(experiment.data, seed=0)
    stage = Stage(experiment, known)
    sizes = known[1].named_sizes
    shown = experiment.representation
    most = None
    if shown is not None and len(known[0].shape) == 3:
        refuse_private(shown, known[0])
        projection = fitted(shown, known[0].shape, rehearsal=True).projection
        most = None if projection is None else len(projection.spread)
    searched = axes(experiment, name, clients=list(sizes.values()), most=most)

    def score(point: Mapping[str, Any], seeds: Sequence[int]) -> list[float]:
        observe(f"{name}: {told(point)}")
        candidate = changed(experiment, name, point)
        return stage.scores(candidate, candidate.made_method(name), seeds)

    start = {**middle(searched), "weights": experiment.server.weights}
    found = search(searched, start, score, seeds=range(seeds), sweeps=sweeps)
    budgets = deal_budgets(experiment.privacy.epsilon, len(sizes), 0)
    if len(set(budgets)) > 1 and METHODS[name].private:
        found = _weighed(experiment, name, stage, found, range(seeds), observe)
    made = changes(name, found.point)
    if name == "pac-dp":
        observe("pac-dp: fitting F under the plan")
        planned = changed(experiment, name, found.point)
        curve = fit_curve(_setting(stage, planned), _grid(found.point["bound"], budgets, seeds))
        made = merged(made, {"methods": {"pac-dp": {"curve": curve.model_dump(mode="json")}}})
    final = Experiment.model_validate(
        merged(experiment.model_dump(mode="json", exclude_unset=True, exclude={"profiles"}), made)
    )
    fresh = range(seeds, 2 * seeds)
    reached = stage.scores(final, final.made_method(name), fresh)
    setting = stage.setting(final)
    proxy = setting.proxy
    return Tuned(
        experiment=experiment.name,
        method=name,
        track=setting.plan(1.0, 1.0, 0).track if experiment.hot_start is None else "public",
        changes=made,
        chosen=found.point,
        why=tuple(asdict(step) for step in found.steps),
        expected={
            "metric": "accuracy" if proxy.data.classes else "minus the loss",
            "mean": statistics.fmean(reached),
            "deviation": statistics.stdev(reached) if seeds > 1 else 0.0,
            "seeds": list(fresh),
        },
        trainings=found.trainings,
        proxy={
            "name": proxy.data.name,
            "made_by": proxy.made_by,
            "source": str(proxy.data.provenance),
            "sha256": proxy.data.train.digest,
        },
        version=__version__,
    )


def _weighed(
    experiment: Experiment,
    method: str,
    stage: Stage,
    found: Found,
    seeds: Sequence[int],
    observe: Observer,
) -> Found:
    """The weights that gain most, of those that do not lose to sizes where labels are uneven.

    How labels are dealt out among the clients is not known, so a rule must be safe if they are.
    """
    scores: dict[float | None, dict[str, list[float]]] = {}
    for skew in (None, SKEW):
        scores[skew] = {}
        for rule in WEIGHTS:
            observe(f"{method}: weights by {rule}")
            candidate = changed(experiment, method, {**found.point, "weights": rule})
            made = candidate.made_method(method)
            scores[skew][rule] = stage.scores(candidate, made, seeds, skew=skew)
    uneven = compared(scores[SKEW], WEIGHTS[0])
    safe = [one.value for one in uneven if one.gain >= -one.error]
    alike = compared(scores[None], WEIGHTS[0])
    best = max((one for one in alike if one.value in safe), key=lambda one: one.mean)
    steps = (
        Step("weights, labels uneven", WEIGHTS[0], " or ".join(safe), uneven),
        Step("weights", found.point["weights"], best.value, alike),
    )
    return Found(
        {**found.point, "weights": best.value},
        (*found.steps, *steps),
        found.trainings + 2 * len(WEIGHTS) * len(seeds),
    )


def _setting(stage: Stage, planned: Experiment) -> Setting:
    """What the grid of F is trained under: the plan that was found."""
    made = planned.made_method("pac-dp")
    assert isinstance(made, PacDp)
    return replace(
        stage.setting(planned),
        training=planned.training,
        model=planned.model,
        server=planned.server,
        privacy=planned.privacy,
        schedule=made.schedule,
    )


def _grid(bound: float, budgets: Sequence[float], seeds: int) -> Offline:
    """Bounds a decade around the one found, and budgets half a decade around those held."""
    return Offline(
        budgets=Axis(low=min(budgets) / 3, high=max(budgets) * 3, count=5),
        bounds=Axis(low=bound / 10, high=bound * 10, count=9),
        seeds=min(seeds, 3),
    )
