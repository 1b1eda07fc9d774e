"""The offline phase of an experiment: which proxy, under which plan."""

from pacdp.data import Dataset, Partition, refuse_overlap
from pacdp.errors import InputError
from pacdp.experiments.experiment import Experiment
from pacdp.experiments.prepare import read_data
from pacdp.experiments.proxies import find_proxy
from pacdp.offline import Setting
from pacdp.schedule import Schedule


def setting_for(
    experiment: Experiment, *, seed: int = 0, read: tuple[Dataset, Partition] | None = None
) -> Setting:
    """What the cells of the experiment's grid are trained under.

    Of the clients nothing but their sizes goes in. That no private record is among the proxy's is
    checked here, where private records are known.
    """
    dataset, split = read or read_data(experiment.data, seed=seed)
    if experiment.hot_start is not None:
        raise InputError(
            "hot_start: takes the proxy for the first model; fit a curve without it, or give one"
        )
    proxy = find_proxy(experiment.data.name, dataset, experiment.offline.proxy)
    refuse_overlap(proxy.data, dataset)
    units = dataset.unit != "record"
    return Setting(
        proxy=proxy,
        sizes=split.named_units(dataset) if units else split.named_sizes,
        unit=dataset.unit,
        training=experiment.training,
        model=experiment.model,
        privacy=experiment.privacy,
        server=experiment.server,
        schedule=_schedule(experiment),
        partition=split.kind,
        settings=dict(split.settings),
    )


def _schedule(experiment: Experiment) -> Schedule:
    given = experiment.methods.get("pac-dp", {}).get("schedule", {})
    return Schedule.model_validate(given)
