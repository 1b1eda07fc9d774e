"""The offline phase of an experiment: its proxy task and the plan that cells are trained under."""

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
from pacdp.federation.population import pool_shares
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
    """Make the public task on which the cells of the experiment's grid are trained.

    Of the clients nothing but their sizes is used. Private records are known here, so this is
    where a proxy that contains one of them is refused. ``progress`` is called while features are
    computed.
    """
    dataset, split = read or read_data(experiment.data, seed=seed)
    proxy, initial = load_selection_data(experiment, dataset, seed=seed, progress=progress)
    sizes = split.sizes_by_client if dataset.unit == "record" else split.units_by_client(dataset)
    # The effect of noise on a class depends on its number of records, so sizes are scaled to give
    # a class of the proxy as many records as one of the private task.
    share = proxy.data.task.stratum_count / dataset.task.stratum_count
    return ProxyTask(
        proxy=proxy,
        sizes={name: max(1, round(size * share)) for name, size in sizes.items()},
        share=share,
        unit=dataset.unit,
        recipe=adapt_recipe(experiment.recipe, dataset, split),
        schedule=Schedule.model_validate(
            experiment.methods.get(PacDp.name, {}).get("schedule", {})
        ),
        initial=initial,
        partition=split.kind,
        settings=dict(split.settings),
    )


def adapt_recipe(recipe: Recipe, dataset: Dataset, split: Partition) -> Recipe:
    """Return the recipe for public records: budgets of single records become shares of levels."""
    records = recipe.privacy.records
    if records is None:
        return recipe
    shared = pool_shares(records, Population.of(dataset, split))
    privacy = recipe.privacy.model_copy(update={"records": shared})
    return recipe.model_copy(update={"privacy": privacy})


def load_selection_data(
    experiment: Experiment, dataset: Dataset, *, seed: int = 0, progress: Progress = ignore_progress
) -> tuple[Proxy, Tensors | None]:
    """Load the public proxy for model selection, and train the initial model if there is one.

    Candidates are never scored on public records that they were trained on: if features or the
    initial model are learned from public records, the proxy consists of others.
    """
    settings = experiment.representation
    public = None
    if settings is not None and settings.public is not None:
        # Applies to all public records: a published curve must not depend on any client.
        refuse_public_overlap(settings, dataset)
        public = load_public_data(settings.public)
        proxy = public.selection_proxy
    elif experiment.hot_start is not None:
        raise InputError(
            "hot_start: takes the proxy for the first model; fit a curve without it, or give one"
        )
    else:
        proxy = _load_proxy(experiment.data.name, dataset, experiment.offline.proxy)
    if settings is None:
        return proxy, None
    pipeline = fit_features(
        settings, dataset.shape, for_selection=public is not None, progress=progress
    )
    proxy = replace(proxy, data=pipeline.transform(proxy.data, progress=progress))
    if public is None or experiment.hot_start is None:
        return proxy, None
    plan = make_plan(
        Recipe(training=experiment.training, model=experiment.model),
        FedAvg(),
        Population(sizes={"nobody": 1}, shape=proxy.data.shape, task=proxy.data.task),
        seed,
    )
    records = pipeline.transform(public.selection_training, progress=progress)
    return proxy, train_warm_start(LocalModel(plan), records, experiment.hot_start, seed=seed)


# A search needs the same proxy for every candidate.
@lru_cache(maxsize=2)
def _load_proxy(name: str, dataset: Dataset, source: str | None) -> Proxy:
    """Load the proxy, and refuse it if it contains a private record."""
    proxy = find_proxy(name, dataset, source)
    refuse_overlap(proxy.data, dataset)
    return proxy
