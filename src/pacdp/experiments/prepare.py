"""From an experiment to what can be run: data, partition, plan and first model."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from pacdp.data import Dataset, Partition, load_dataset, partition_records, refuse_overlap
from pacdp.data.partition import SETTINGS
from pacdp.data.proxy import PROXIES
from pacdp.errors import InputError
from pacdp.experiments.experiment import Data, Experiment
from pacdp.experiments.proxies import find_proxy
from pacdp.features import Features, extract_features, fit_features, load_public_data
from pacdp.federation import LocalModel, Plan, Population, make_plan
from pacdp.federation.local_model import Tensors
from pacdp.federation.warm_start import evaluate_initial_model, train_warm_start
from pacdp.methods import Method
from pacdp.progress import Progress, ignore_progress


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun:
    """All that a run needs."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    plan: Plan
    initial: Tensors
    before: dict[str, float] | None
    """How good the first model is, where public records went into it or into what it sees."""


def read_data(settings: Data, *, seed: int) -> tuple[Dataset, Partition]:
    """The data set and its split among clients; the seed draws the split where it is drawn."""
    dataset = read_records(settings)
    return dataset, partition_dataset(settings, dataset, seed=seed)


def read_records(settings: Data) -> Dataset:
    """The data set alone."""
    taken = [key for key in settings.options if key in ("name", "folder")]
    if taken:
        raise InputError(f"data.options.{taken[0]}: is no option of a data set")
    return load_dataset(settings.name, **settings.options)


def partition_dataset(settings: Data, dataset: Dataset, *, seed: int) -> Partition:
    """Who holds which of its records."""
    kind = settings.partition or ("natural" if dataset.clients else "iid")
    unknown = [key for key in settings.settings if key not in SETTINGS.get(kind, {})]
    if unknown:
        raise InputError(f"data.settings.{unknown[0]}: is no setting of the partition {kind}")
    return partition_records(
        dataset, kind, clients=settings.clients, seed=seed, **settings.settings
    )


def apply_features(
    experiment: Experiment, dataset: Dataset, *, progress: Progress = ignore_progress
) -> Dataset:
    """The records as the experiment's model sees them."""
    settings = experiment.representation
    if settings is None:
        return dataset
    return _seen(dataset, _Wanted(settings.model_dump_json(), progress))


@dataclass(frozen=True)
class _Wanted:
    """A representation that is asked for; who is told how far it is does not tell two apart."""

    settings: str
    progress: Progress = field(compare=False)


@lru_cache(maxsize=3)
def _seen(dataset: Dataset, wanted: _Wanted) -> Dataset:
    # Many runs share their records; a map is applied once.
    settings = Features.model_validate_json(wanted.settings)
    return extract_features(dataset, settings, progress=wanted.progress)


def plan_run(
    experiment: Experiment,
    method: Method,
    dataset: Dataset,
    split: Partition,
    *,
    seed: int,
    progress: Progress = ignore_progress,
) -> Plan:
    """The plan of a method on this data; sizes are all it asks of the clients.

    ``dataset`` are the records themselves; what the model sees of them is found here.
    """
    settings, shown = (
        experiment.representation,
        apply_features(experiment, dataset, progress=progress),
    )
    return make_plan(
        experiment,
        method,
        replace(Population.of(dataset, split, data=experiment.name), shape=shown.shape),
        seed,
        provenance={} if settings is None else fit_features(settings, dataset.shape).provenance,
        tuning=experiment.tuning,
    )


def load_warm_start_data(
    experiment: Experiment, private: Dataset, *, progress: Progress = ignore_progress
) -> Dataset:
    """The public records of a hot start, as the model sees them.

    Those that its representation was trained on, or a proxy.
    """
    assert experiment.hot_start is not None
    wanted, settings = experiment.hot_start.proxy, experiment.representation
    if wanted is None and settings is not None and settings.public is not None:
        ready = fit_features(settings, private.shape, progress=progress)
        return ready.transform(load_public_data(settings.public).training, progress=progress)
    if wanted is None and experiment.data.name not in PROXIES:
        raise InputError("hot_start.proxy: is missing; must name public data of the same shape")
    proxy = find_proxy(experiment.data.name, private, wanted)
    refuse_overlap(proxy.data, private)
    if settings is None:
        return proxy.data
    return fit_features(settings, private.shape, progress=progress).transform(
        proxy.data, progress=progress
    )


def prepare_run(
    experiment: Experiment,
    *,
    method: Method | None = None,
    seed: int = 0,
    device: str = "cpu",
    read: tuple[Dataset, Partition] | None = None,
    progress: Progress = ignore_progress,
) -> PreparedRun:
    """Decide everything before the first round; ``read`` are its records, where they are known.

    ``progress`` is told how far a representation is, where one is being made.
    """
    raw, split = read or read_data(experiment.data, seed=seed)
    dataset = apply_features(experiment, raw, progress=progress)
    plan = plan_run(experiment, method or experiment.build_method(), raw, split, seed=seed)
    local_model = LocalModel(plan, device=device)
    initial, before = local_model.state(), None
    if experiment.hot_start is not None:
        public = load_warm_start_data(experiment, raw, progress=progress)
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
