"""The offline phase of an experiment: which proxy, under which plan."""

from pacdp.data import Dataset, Partition, load, proxy_for, refuse_overlap
from pacdp.data.proxy import PAIRS, Proxy
from pacdp.data.small import synthetic
from pacdp.errors import InputError
from pacdp.experiments.experiment import Experiment
from pacdp.experiments.prepare import read_data
from pacdp.offline import Setting
from pacdp.schedule import Schedule


def setting_for(
    experiment: Experiment, *, seed: int = 0, read: tuple[Dataset, Partition] | None = None
) -> Setting:
    """What the cells of the experiment's grid are trained under.

    Of the clients nothing but their sizes goes in. That no private record is among the proxy's is
    checked here, where private records are known.
    """
    dataset, split = read or read_data(experiment, seed=seed)
    if experiment.hot_start is not None:
        raise InputError(
            "hot_start: takes the proxy for the first model; fit a curve without it, or give one"
        )
    proxy = find_proxy(experiment, dataset)
    refuse_overlap(proxy.data, dataset)
    units = dataset.unit != "record"
    return Setting(
        proxy=proxy,
        sizes=split.named_units(dataset) if units else split.named_sizes,
        training=experiment.training,
        model=experiment.model,
        privacy=experiment.privacy,
        server=experiment.server,
        schedule=_schedule(experiment),
        partition=split.kind,
        settings=dict(split.settings),
    )


def find_proxy(experiment: Experiment, dataset: Dataset) -> Proxy:
    """The proxy that the experiment names: a ready one, or any data set of the same shape.

    Without a name it is the first ready one, and for records that are rows of numbers a synthetic
    one.
    """
    name, wanted = experiment.data.name, experiment.offline.proxy
    if name in PAIRS and (wanted is None or wanted in PAIRS[name]):
        return proxy_for(name, wanted)
    if wanted is None and len(dataset.shape) == 1 and dataset.classes:
        made = synthetic(features=dataset.shape[0], classes=len(dataset.classes), records=5000)
        return Proxy(data=made, stands_for=name, made_by="Gaussian clouds of the same shape")
    if wanted is None:
        raise InputError(
            f"offline.proxy: there is none ready for {name}; must name a data set or folder of "
            f"records of shape {dataset.shape}"
        )
    data = load(wanted)
    if (data.shape, len(data.classes)) != (dataset.shape, len(dataset.classes)):
        raise InputError(
            f"offline.proxy = {wanted}: has records of shape {data.shape} in {len(data.classes)} "
            f"classes, must have {dataset.shape} in {len(dataset.classes)}"
        )
    return Proxy(data=data, stands_for=name, made_by="as it is")


def _schedule(experiment: Experiment) -> Schedule:
    given = experiment.methods.get("pac-dp", {}).get("schedule", {})
    return Schedule.model_validate(given)
