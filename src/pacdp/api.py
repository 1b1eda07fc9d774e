"""The public API: what the command line does, as functions that return typed values.

``import pacdp`` offers the same names, and loads this module when one of them is first used. An
experiment is given by the name of a shipped one, by the path of a TOML file, or as an
:class:`~pacdp.experiments.Experiment`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pacdp.arithmetic import RUN_AGAIN
from pacdp.curve import Curve as Curve
from pacdp.data import Dataset, Partition
from pacdp.errors import InputError
from pacdp.experiments import Experiment as Experiment
from pacdp.experiments import PreparedRun, RunFolder, RunResult, prepare_run, read_experiment
from pacdp.experiments.execute import refuse_engine, simulate_run
from pacdp.experiments.experiment import Changes
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import plan_run, read_data
from pacdp.federation import Plan as Plan
from pacdp.federation import RoundResult
from pacdp.methods import METHODS as METHODS_BY_NAME
from pacdp.methods import Method, import_method
from pacdp.offline import ScoreStore, Worker, fit_curve, train_in_process
from pacdp.privacy import Ledger
from pacdp.progress import Progress, ignore_progress
from pacdp.reporting import Comparison as Comparison
from pacdp.reporting import write_report
from pacdp.storage import require_new_file
from pacdp.tuning import TunedConfiguration as TunedConfiguration
from pacdp.tuning import apply_configuration, find_contradiction
from pacdp.tuning import tune as search_configuration
from pacdp.validation import require_count

_LOGGER = logging.getLogger(__name__)

ExperimentLike = Experiment | str | Path
METHODS = ("pac-dp", "fixed", "dp-fedavg", "fedavg")


class Result(RunResult):
    """The result of :func:`run`: metrics, guarantees, the plan, the rounds and the model."""

    def report(self, path: Path | str, *, title: str | None = None) -> Path:
        """Write a report of the run as a self-contained HTML page, and return its path."""
        return report(self, path, title=title)


def load_experiment(
    experiment: ExperimentLike,
    *,
    profile: str | None = None,
    changes: Changes = (),
    configuration: TunedConfiguration | Path | str | None = None,
    curves: bool = True,
) -> Experiment:
    """Load an experiment, optionally in one of its profiles and with single settings changed.

    ``profile`` is ``smoke``, ``desk`` or ``full``. ``changes`` are settings by their dotted names,
    such as ``{"training.rounds": 5}``, or texts such as ``"training.rounds=5"``. ``configuration``
    is the result of :func:`tune`, or the file in which it was saved. With ``curves=False``, curve
    files are not read, because they may not exist yet.

    >>> load_experiment("heart", changes={"training.rounds": 5}).training.rounds
    5
    """
    if isinstance(experiment, Experiment):
        if profile is not None or changes:
            raise InputError(
                "profile, changes: need an experiment given by name or path, not an Experiment"
            )
        loaded = experiment
    else:
        # A tuned configuration brings its own curve.
        curves = curves and configuration is None
        loaded = read_experiment(str(experiment), profile=profile, changes=changes, curves=curves)
    if configuration is None:
        return loaded
    if not isinstance(configuration, TunedConfiguration):
        configuration = TunedConfiguration.load(Path(configuration))
    contradicted = find_contradiction(configuration, changes)
    if contradicted is not None:
        raise InputError(f"{contradicted}: contradicts the configuration; leave out one of the two")
    return apply_configuration(loaded, configuration)


def plan(
    experiment: ExperimentLike,
    *,
    method: Method | str | None = None,
    seed: int = 0,
    profile: str | None = None,
    changes: Changes = (),
    configuration: TunedConfiguration | Path | str | None = None,
    progress: Progress = ignore_progress,
) -> Plan:
    """Compute the training plan (noise, clipping bounds, releases, guarantees) without training.

    ``method`` is a name, a name with settings such as ``fixed:clipping_bound=5``, the path
    ``module:Class`` of a custom method, or a :class:`~pacdp.methods.Method`; by default it is the
    experiment's method. ``profile``, ``changes`` and ``configuration`` are those of
    :func:`load_experiment`.

    >>> plan("heart", method="fixed", profile="smoke").clients[0].epsilon
    0.1
    """
    loaded = load_experiment(
        experiment, profile=profile, changes=changes, configuration=configuration
    )
    chosen = _build_method(loaded, method)
    dataset, partition = read_data(loaded.data, seed=require_seed(seed))
    return plan_run(loaded, chosen, dataset, partition, seed=seed, progress=progress)


def prepare(
    experiment: Experiment,
    *,
    method: Method | str | None = None,
    seed: int = 0,
    read: tuple[Dataset, Partition] | None = None,
    progress: Progress = ignore_progress,
) -> PreparedRun:
    """Prepare a run as :func:`run` does before the first round, without training.

    ``read`` is the partitioned data set, if it has been read already.
    """
    read = read or read_data(experiment.data, seed=require_seed(seed))
    curve = _fit_missing_curve(experiment, [method], seed=seed, read=read, progress=progress)
    chosen = _build_method(experiment, method, curve)
    return prepare_run(experiment, method=chosen, seed=seed, read=read, progress=progress)


def fit(
    experiment: ExperimentLike,
    *,
    seed: int = 0,
    scores: Path | str | None = None,
    worker: Worker = train_in_process,
    profile: str | None = None,
    changes: Changes = (),
    progress: Progress = ignore_progress,
) -> Curve:
    """Fit the curve F, from budgets to clipping bounds, on public proxy data.

    The proxy data are trained with the experiment's own settings. ``scores`` is a file to which the
    scores of the grid are written as they are computed, so that an interrupted fit can continue.
    ``worker`` trains the cells of the grid, by default in this process; see
    :func:`pacdp.cluster.on_ray`.
    """
    loaded = load_experiment(experiment, profile=profile, changes=changes, curves=False)
    proxy_task = make_proxy_task(loaded, seed=require_seed(seed), progress=progress)
    store = ScoreStore.open(None if scores is None else Path(scores), proxy_task)
    return fit_curve(proxy_task, loaded.offline, store=store, worker=worker, progress=progress)


def tune(
    experiment: ExperimentLike,
    *,
    method: str | None = None,
    seeds: int = 5,
    sweeps: int = 2,
    profile: str | None = None,
    changes: Changes = (),
    progress: Progress = ignore_progress,
) -> TunedConfiguration:
    """Choose the hyperparameters of a method on public data, under the experiment's own budgets.

    ``seeds`` is the number of training runs of each candidate, ``sweeps`` the maximum number of
    passes over the search space. The result can be saved, and passed to :func:`run` as
    ``configuration``.
    """
    loaded = load_experiment(experiment, profile=profile, changes=changes, curves=False)
    return search_configuration(
        loaded, method=method, seeds=seeds, sweeps=sweeps, progress=progress
    )


def run(
    experiment: ExperimentLike,
    *,
    method: Method | str | None = None,
    seed: int = 0,
    profile: str | None = None,
    changes: Changes = (),
    configuration: TunedConfiguration | Path | str | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    ledgers: Sequence[Ledger | None] | None = None,
    device: str = "cpu",
    engine: str = "auto",
    on_round: Callable[[RoundResult], None] = lambda result: None,
    progress: Progress = ignore_progress,
    command: Sequence[str] = (),
) -> Result:
    """Train, and return the model, its metrics, and the ε that each client spent.

    The arguments up to ``configuration`` are those of :func:`plan`. If the method needs a curve and
    the experiment has none, one is fitted first.

    ``folder`` is a new folder for the files of the run, or with ``resume`` the folder of an
    interrupted run. ``ledgers`` holds one ledger per client, by default in memory; if a ledger is
    durable, noise comes from the operating system, so the run cannot be reproduced exactly.
    ``device`` is a torch device such as ``cuda``. ``engine`` computes the clients' updates:
    ``serial``, ``threaded``, ``stacked``, a custom ``module:Class``, or ``auto`` for the fastest
    one that fits the plan; the engines agree up to rounding. ``on_round`` is called with the result
    of each round. ``command`` is the command line recorded in the report for reproduction.

    >>> result = run("heart", method="fixed", profile="smoke")
    >>> client = result.clients[0]
    >>> client.epsilon_budget, round(client.epsilon_spent, 6), client.delta, client.adjacency
    (0.1, 0.1, 1e-05, 'zero-out')
    """
    if resume and (folder is None or ledgers is not None):
        raise InputError("resume: needs the folder of the interrupted run, and no ledgers")
    loaded = load_experiment(
        experiment, profile=profile, changes=changes, configuration=configuration
    )
    path = None if folder is None else Path(folder)
    saved = path / "curve.json" if resume and path is not None else None
    require_seed(seed)
    curve = _fit_missing_curve(loaded, [method], seed=seed, saved=saved, progress=progress)
    chosen = _build_method(loaded, method, curve)
    prepared = prepare_run(loaded, method=chosen, seed=seed, device=device, progress=progress)
    refuse_engine(prepared, engine, device=device)
    files = None if path is None else RunFolder(path, prepared, resume=resume)
    if files is not None and curve is not None:
        curve.save(files.path / "curve.json")

    def observe(result: RoundResult) -> None:
        on_round(result)
        if files is not None:
            files.add_round(result)

    trained = simulate_run(
        prepared,
        observe=observe,
        ledgers=ledgers,
        checkpoint=None if files is None or ledgers is not None else files.checkpoint,
        device=device,
        engine=engine,
    )
    result = Result.of(prepared, trained, profile=profile)
    if files is not None:
        files.finish(result)
        page = files.path / "report.html"
        write_report(page, {result.method: [result]}, folders=[files.path], command=command)
    return result


def compare(
    experiment: ExperimentLike,
    methods: Iterable[str] = METHODS,
    *,
    seeds: int = 3,
    profile: str | None = None,
    changes: Changes = (),
    configurations: Mapping[str, TunedConfiguration | Path | str] | None = None,
    progress: Progress = ignore_progress,
) -> Comparison:
    """Run several methods under the same budgets, and compare their results.

    Each method is run with the seeds 0, 1, ..., ``seeds`` - 1; model weights are not kept.
    ``configurations`` are results of :func:`tune` by method; methods without one use the
    experiment's own settings. If methods need a curve and the experiment has none, one curve is
    fitted for all of them.

    >>> comparison = compare("heart", ["fixed", "fedavg"], seeds=1, profile="smoke")
    >>> list(comparison.groups)
    ['fixed', 'fedavg']
    """
    names = list(methods)
    if not names or len(set(names)) != len(names):
        raise InputError(f"methods {', '.join(names)!r}: must be different names, at least one")
    runs = [(name, seed) for name in names for seed in range(int(require_count("seeds", seeds)))]
    tuned = dict(configurations or {})
    experiments = {
        name: load_experiment(
            experiment, profile=profile, changes=changes, configuration=tuned.get(name)
        )
        for name in names
    }
    untuned = [name for name in names if name not in tuned]
    curve = None
    if untuned:
        curve = _fit_missing_curve(experiments[untuned[0]], untuned, progress=progress)
    built = {name: _build_method(experiments[name], name, curve) for name in names}
    groups: dict[str, list[RunResult]] = {name: [] for name in names}
    for done, (name, seed) in enumerate(runs):
        progress("comparing", done, len(runs), f"{name}, seed {seed}")
        prepared = prepare_run(experiments[name], method=built[name], seed=seed, progress=progress)
        result = RunResult.of(prepared, simulate_run(prepared), profile=profile)
        # The models of all runs may not fit into memory.
        groups[name].append(result.without_weights())
    progress("comparing", len(runs), len(runs))
    return Comparison(groups)


def report(
    results: Comparison | RunResult | Iterable[RunResult | Path | str],
    path: Path | str,
    *,
    title: str | None = None,
    description: str | None = None,
    command: Sequence[str] = (),
) -> Path:
    """Write a report of results as a self-contained HTML page, and return its path.

    ``results`` are those of :func:`run` or :func:`compare`, or the folders of finished runs.
    ``path`` must not exist yet. ``command`` is the command line recorded in the report for
    reproduction.
    """
    page = require_new_file(Path(path))
    folders: list[Path] = []
    if not isinstance(results, Comparison):
        items = [results] if isinstance(results, RunResult) else list(results)
        folders = [Path(item) for item in items if not isinstance(item, RunResult)]
        results = Comparison.of(
            item if isinstance(item, RunResult) else RunResult.load(Path(item)) for item in items
        )
    write_report(
        page, results.groups, command=command, folders=folders, description=description, title=title
    )
    return page


def require_seed(seed: int) -> int:
    """Return the seed; raise InputError if it is out of range."""
    if not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed}: must be a whole number from 0 to 2^63 - 1")
    return seed


def split_method(text: str) -> tuple[str, dict[str, float]]:
    """Split ``NAME:key=value`` into the name, which may be ``module:Class``, and the settings.

    >>> split_method("fixed:clipping_bound=5")
    ('fixed', {'clipping_bound': 5.0})
    >>> split_method("pacdp.methods.fixed:Fixed")
    ('pacdp.methods.fixed:Fixed', {})
    """
    name, *parts = text.split(":")
    if name not in METHODS_BY_NAME and parts and "=" not in parts[0]:
        name = f"{name}:{parts.pop(0)}"
    if not name or name.startswith(":"):
        raise InputError(f"method = {text!r}: must be NAME or NAME:KEY=VALUE")
    settings: dict[str, float] = {}
    for part in parts:
        key, sign, value = part.partition("=")
        try:
            if not sign or not key.strip() or key in settings:
                raise ValueError
            settings[key.strip().replace("-", "_")] = float(value)
        except ValueError:
            raise InputError(f"method = {text!r}: must be KEY=VALUE with a number") from None
    return import_method(name), settings


def _build_method(
    experiment: Experiment, method: Method | str | None, curve: Curve | None = None
) -> Method:
    """Build the method; ``curve`` is used if the method needs one and has none."""
    if isinstance(method, Method):
        return method
    name, settings = split_method(experiment.method if method is None else method)
    tuned = experiment.tuning
    if tuned is not None and tuned["method"] != name:
        raise InputError(f"configuration: was tuned for {tuned['method']}, must be for {name}")
    fitted = {} if curve is None else dict.fromkeys(experiment.missing_settings(name), curve)
    return experiment.build_method(name, settings | fitted)


def _fit_missing_curve(
    experiment: Experiment,
    methods: Sequence[Method | str | None],
    *,
    seed: int = 0,
    saved: Path | None = None,
    read: tuple[Dataset, Partition] | None = None,
    progress: Progress,
) -> Curve | None:
    """Load or fit a curve if a method needs one and the experiment has none."""
    texts = [experiment.method if name is None else name for name in methods]
    names = [split_method(text)[0] for text in texts if isinstance(text, str)]
    if not any(experiment.missing_settings(name) for name in names):
        return None
    if saved is not None and saved.is_file():
        return Curve.load(saved, advice=RUN_AGAIN)
    proxy_task = make_proxy_task(experiment, seed=seed, read=read, progress=progress)
    _LOGGER.warning("the experiment has no curve: fitting one on %s", proxy_task.proxy.data.name)
    return fit_curve(proxy_task, experiment.offline, progress=progress)
