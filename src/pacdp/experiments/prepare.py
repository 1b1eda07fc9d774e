"""Prepare an experiment for training: data, partition, plan and initial model."""

from dataclasses import dataclass, replace

import numpy as np

from pacdp.data import Dataset, Partition, Records, load_dataset, partition_records, refuse_overlap
from pacdp.data.partition import SETTINGS
from pacdp.data.proxy import PROXIES
from pacdp.data.records import require_budgets
from pacdp.errors import InputError
from pacdp.experiments.experiment import Data, Experiment
from pacdp.experiments.proxies import find_proxy
from pacdp.features import extract_features, fit_features, load_public_data
from pacdp.federation import LocalModel, Plan, Population, make_plan
from pacdp.federation.local_model import Tensors
from pacdp.federation.warm_start import evaluate_initial_model, train_warm_start
from pacdp.methods import Method
from pacdp.plugins import import_object
from pacdp.progress import Progress, ignore_progress


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun:
    """Everything that a run needs, decided before the first round."""

    experiment: Experiment
    dataset: Dataset
    """The records with the features that the model is trained on."""
    partition: Partition
    plan: Plan
    initial: Tensors
    before: dict[str, float] | None
    """Scores of the initial model, if public records went into it or into its features."""


def read_data(settings: Data, *, seed: int) -> tuple[Dataset, Partition]:
    """Load a data set and split it among the clients; ``seed`` is that of a random split."""
    dataset = read_records(settings)
    return dataset, partition_dataset(settings, dataset, seed=seed)


def read_records(settings: Data) -> Dataset:
    """Load a data set without splitting it among clients."""
    for key in ("name", "folder"):
        if key in settings.options:
            raise InputError(f"data.options.{key}: is no option of a data set")
    dataset = load_dataset(settings.name, **settings.options)
    return dataset if settings.budgets is None else _assign_budgets(settings.budgets, dataset)


def _assign_budgets(path: str, dataset: Dataset) -> Dataset:
    """Give each record the budget that the user's function returns for it."""
    function, where = import_object("data.budgets", path), f"data.budgets = {path!r}"
    if not callable(function):
        raise InputError(f"{where}: must be a function of records")

    def assign(records: Records) -> Records:
        if records.budgets is not None:
            raise InputError(
                f"{where}: the records have budgets of their own, which it would ignore"
            )
        try:
            budgets = np.asarray(function(records))
        except Exception as error:  # the function is the user's and can fail in any way
            raise InputError(f"{where}: failed ({type(error).__name__})") from error
        if budgets.shape != (len(records),):
            raise InputError(f"{where}: must return one ε > 0 for each record")
        return replace(records, budgets=require_budgets(where, budgets, records.units))

    return dataset.map_records(assign)


def partition_dataset(settings: Data, dataset: Dataset, *, seed: int) -> Partition:
    """Split a data set among the clients."""
    kind = settings.partition or ("natural" if dataset.clients else "iid")
    for key in settings.settings:
        if key not in SETTINGS.get(kind, {}):
            raise InputError(f"data.settings.{key}: is no setting of the partition {kind}")
    return partition_records(
        dataset, kind, clients=settings.clients, seed=seed, **settings.settings
    )


def apply_features(
    experiment: Experiment, dataset: Dataset, *, progress: Progress = ignore_progress
) -> Dataset:
    """Replace the features of private records by those that the model is trained on."""
    settings = experiment.representation
    return dataset if settings is None else extract_features(dataset, settings, progress=progress)


def plan_run(
    experiment: Experiment,
    method: Method,
    dataset: Dataset,
    split: Partition,
    *,
    seed: int,
    features: Dataset | None = None,
    progress: Progress = ignore_progress,
) -> Plan:
    """Make the plan of a method for this data; of the clients it uses nothing but their sizes.

    ``dataset`` holds the original records. ``features`` is the result of :func:`apply_features`,
    which is computed if it is not given.
    """
    settings = experiment.representation
    if features is None:
        features = apply_features(experiment, dataset, progress=progress)
    return make_plan(
        experiment,
        method,
        replace(Population.of(dataset, split, data=experiment.name), shape=features.shape),
        seed,
        provenance={} if settings is None else fit_features(settings, dataset.shape).provenance,
        tuning=experiment.tuning,
    )


def load_warm_start_data(
    experiment: Experiment, private: Dataset, *, progress: Progress = ignore_progress
) -> Dataset:
    """Load the public records of a warm start, with the features that the model is trained on.

    By default they are those that the features were learned from, or else the proxy.
    """
    assert experiment.hot_start is not None
    source, settings = experiment.hot_start.proxy, experiment.representation
    if source is None and settings is not None and settings.public is not None:
        public = load_public_data(settings.public).training
    elif source is None and experiment.data.name not in PROXIES:
        raise InputError("hot_start.proxy: is missing; must name public data of the same shape")
    else:
        public = find_proxy(experiment.data.name, private, source).data
        refuse_overlap(public, private)
    if settings is None:
        return public
    pipeline = fit_features(settings, private.shape, progress=progress)
    return pipeline.transform(public, progress=progress)


def prepare_run(
    experiment: Experiment,
    *,
    method: Method | None = None,
    seed: int = 0,
    device: str = "cpu",
    read: tuple[Dataset, Partition] | None = None,
    progress: Progress = ignore_progress,
) -> PreparedRun:
    """Load the data and decide everything else that must be fixed before the first round.

    ``read`` is the result of :func:`read_data`, if it is known already. ``progress`` is called
    while features are computed.
    """
    records, split = read or read_data(experiment.data, seed=seed)
    dataset = apply_features(experiment, records, progress=progress)
    method = method or experiment.build_method()
    plan = plan_run(experiment, method, records, split, seed=seed, features=dataset)
    local_model = LocalModel(plan, device=device)
    initial, before = local_model.state(), None
    if experiment.hot_start is not None:
        public = load_warm_start_data(experiment, records, progress=progress)
        initial = train_warm_start(local_model, public, experiment.hot_start, seed=seed)
    if plan.track == "public":
        before = evaluate_initial_model(local_model, initial, dataset)
    return PreparedRun(
        experiment=experiment,
        dataset=dataset,
        partition=split,
        plan=plan,
        initial=initial,
        before=before,
    )
