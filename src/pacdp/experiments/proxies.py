"""Which public data stand in for an experiment's own."""

from pacdp.data import Dataset, load_dataset, load_proxy
from pacdp.data.builtin import generate_synthetic
from pacdp.data.proxy import PROXIES, Proxy
from pacdp.errors import InputError


def find_proxy(name: str, dataset: Dataset, wanted: str | None) -> Proxy:
    """The proxy that an experiment names: a ready one, or any data set of the same shape.

    ``synthetic`` is made in the shape of the records. Without a name it is the first ready one, and
    for records that are rows of numbers a synthetic one.
    """
    if name in PROXIES and (wanted is None or wanted in PROXIES[name]):
        # Read with fewer features, Heart has patients with as many.
        options = {"features": dataset.shape[0]} if wanted == "patients" else {}
        ready = load_proxy(name, wanted, **options)
        # Read with other features, a set needs another proxy.
        if ready.data.shape == dataset.shape or wanted not in (None, "synthetic"):
            return ready
    kinds = len(dataset.task.class_names)
    numbers = dataset.train.features.dtype.kind in "fu" and kinds > 0
    rows = wanted is None and len(dataset.shape) == 1
    if numbers and (rows or wanted == "synthetic"):
        # Another seed than the default, so that a synthetic set does not stand in for itself.
        made = generate_synthetic(
            shape=dataset.shape, classes=kinds, records=max(5000, 25 * kinds), seed=1
        )
        return Proxy(data=made, stands_for=name, made_by="Gaussian clouds of the same shape")
    if wanted is None:
        raise InputError(
            f"offline.proxy: there is none ready for {name}; must name a data set or folder of "
            f"records of shape {dataset.shape}"
        )
    data = load_dataset(wanted)
    if (data.shape, data.task) != (dataset.shape, dataset.task):
        raise InputError(
            f"offline.proxy = {wanted}: has records of shape {data.shape} for {data.task}, must "
            f"have {dataset.shape} for {dataset.task}"
        )
    return Proxy(data=data, stands_for=name, made_by="as it is")
