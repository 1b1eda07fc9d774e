"""The offline phase of an experiment: which proxy, under which plan."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pacdp.data import Dataset, Partition, refuse_overlap
from pacdp.data.proxy import Proxy
from pacdp.errors import InputError
from pacdp.experiments.experiment import Experiment
from pacdp.experiments.prepare import read_data
from pacdp.experiments.proxies import find_proxy
from pacdp.features import fit_features, load_public_data, refuse_public_overlap
from pacdp.federation import LocalModel, Population, Recipe, make_plan
from pacdp.federation.local_model import Tensors
from pacdp.federation.warm_start import train_warm_start
from pacdp.methods import PacDp
from pacdp.methods.fedavg import FedAvg
from pacdp.offline import ProxyTask
from pacdp.progress import Progress, ignore_progress
from pacdp.schedule import Schedule


def make_proxy_task(
    experiment: Experiment,
    *,
    seed: int = 0,
    read: tuple[Dataset, Partition] | None = None,
    progress: Progress = ignore_progress,
) -> ProxyTask:
    """What the cells of the experiment's grid are trained under.

    Of the clients nothing but their sizes goes in. That no private record is among the proxy's is
    checked here, where private records are known. ``progress`` is told how far a representation is.
    """
    dataset, split = read or read_data(experiment.data, seed=seed)
    proxy, initial = load_selection_data(experiment, dataset, seed=seed, progress=progress)
    sizes = split.sizes_by_client if dataset.unit == "record" else split.units_by_client(dataset)
    share = proxy.data.task.stratum_count / dataset.task.stratum_count
    return ProxyTask(
        proxy=proxy,
        sizes=_like(sizes, share),
        share=share,
        unit=dataset.unit,
        recipe=experiment.recipe,
        schedule=_schedule(experiment),
        initial=initial,
        partition=split.kind,
        settings=dict(split.settings),
    )


def load_selection_data(
    experiment: Experiment, dataset: Dataset, *, seed: int = 0, progress: Progress = ignore_progress
) -> tuple[Proxy, Tensors | None]:
    """The public task on which the experiment is rehearsed, and the first model it begins with.

    Nothing is judged by public records that it was trained on: where a network or a first model is
    trained on some, others are the judge.
    """
    settings = experiment.representation
    if settings is None or settings.public is None:
        if experiment.hot_start is not None:
            raise InputError(
                "hot_start: takes the proxy for the first model; fit a curve without it, or give "
                "one"
            )
        proxy = _proxy(experiment.data.name, dataset, experiment.offline.proxy)
        if settings is None:
            return proxy, None
        ready = fit_features(settings, dataset.shape, progress=progress)
        return replace(proxy, data=ready.transform(proxy.data, progress=progress)), None
    # Both what is learned from and what judges: a curve that is published must know of no client.
    refuse_public_overlap(settings, dataset)
    public = load_public_data(settings.public)
    shown = fit_features(settings, dataset.shape, for_selection=True, progress=progress)
    proxy = replace(
        public.selection_proxy, data=shown.transform(public.selection_proxy.data, progress=progress)
    )
    if experiment.hot_start is None:
        return proxy, None
    local_model = LocalModel(
        make_plan(
            Recipe(training=experiment.training, model=experiment.model),
            FedAvg(),
            Population(sizes={"nobody": 1}, shape=proxy.data.shape, task=proxy.data.task),
            seed,
        )
    )
    first = shown.transform(public.selection_training, progress=progress)
    return proxy, train_warm_start(local_model, first, experiment.hot_start, seed=seed)


@lru_cache(maxsize=2)
def _proxy(name: str, dataset: Dataset, wanted: str | None) -> Proxy:
    """The proxy, none of whose records is private: a search asks for it at every candidate."""
    proxy = find_proxy(name, dataset, wanted)
    refuse_overlap(proxy.data, dataset)
    return proxy


def _like(sizes: Mapping[str, int], share: float) -> dict[str, int]:
    """Sizes that give a class of the proxy as many records as one of the task has.

    What noise does to a class depends on how many records speak for it.
    """
    return {name: max(1, round(size * share)) for name, size in sizes.items()}


def _schedule(experiment: Experiment) -> Schedule:
    given = experiment.methods.get(PacDp.name, {}).get("schedule", {})
    return Schedule.model_validate(given)
