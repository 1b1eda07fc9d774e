"""Find the public data that stand in for the private data of an experiment."""

from pacdp.data import Dataset, load_dataset, load_proxy
from pacdp.data.builtin import generate_synthetic
from pacdp.data.proxy import PROXIES, Proxy
from pacdp.errors import InputError


def find_proxy(name: str, dataset: Dataset, source: str | None) -> Proxy:
    """Return the proxy that an experiment names: a built-in one, or a data set of the same shape.

    ``synthetic`` is generated in the shape of the records. The default is the first built-in proxy,
    or for rows of numbers a synthetic one.
    """
    if name in PROXIES and (source is None or source in PROXIES[name]):
        # The proxy of Heart must have the same number of features.
        options = {"features": dataset.shape[0]} if source == "patients" else {}
        ready = load_proxy(name, source, **options)
        # With other options a data set may have another shape than its proxy.
        if ready.data.shape == dataset.shape or source not in (None, "synthetic"):
            return ready
    classes = len(dataset.task.class_names)
    numbers = dataset.train.features.dtype.kind in "fu" and classes > 0
    rows = source is None and len(dataset.shape) == 1
    if numbers and (rows or source == "synthetic"):
        # Another seed than the default, so that a synthetic set does not stand in for itself.
        data = generate_synthetic(
            shape=dataset.shape, classes=classes, records=max(5000, 25 * classes), seed=1
        )
        return Proxy(data=data, stands_for=name, made_by="Gaussian clouds of the same shape")
    if source is None:
        raise InputError(
            f"offline.proxy: there is none ready for {name}; must name a data set or folder of "
            f"records of shape {dataset.shape}"
        )
    data = load_dataset(source)
    if (data.shape, data.task) != (dataset.shape, dataset.task):
        raise InputError(
            f"offline.proxy = {source}: has records of shape {data.shape} for {data.task}, must "
            f"have {dataset.shape} for {dataset.task}"
        )
    return Proxy(data=data, stands_for=name, made_by="as it is")
