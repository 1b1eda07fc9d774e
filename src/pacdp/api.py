"""The public API: what the command line does, as functions that return typed values.

``import pacdp`` offers the same names, and loads this module when one of them is first used. An
experiment is given by the name of a shipped one, by the path of a TOML file, or as an
:class:`~pacdp.experiments.Experiment`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pacdp.arithmetic import RUN_AGAIN
from pacdp.curve import Curve
from pacdp.errors import InputError
from pacdp.experiments import Experiment, RunFolder, RunResult, prepare_run, read_experiment
from pacdp.experiments.execute import refuse_engine, simulate_run
from pacdp.experiments.experiment import Changes
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import plan_run, read_data
from pacdp.federation import Plan, RoundResult
from pacdp.methods import METHODS as METHODS_BY_NAME
from pacdp.methods import Method, import_method
from pacdp.offline import ScoreStore, Worker, fit_curve, train_in_process
from pacdp.privacy import Ledger
from pacdp.progress import Progress, ignore_progress
from pacdp.reporting import Comparison, write_report
from pacdp.tuning import TunedConfiguration, apply_configuration, find_contradiction
from pacdp.tuning import tune as search_configuration
from pacdp.validation import require_count

__all__ = [
    "Comparison",
    "Curve",
    "Experiment",
    "Plan",
    "Result",
    "TunedConfiguration",
    "compare",
    "fit",
    "load_experiment",
    "plan",
    "report",
    "run",
    "tune",
]

_LOGGER = logging.getLogger(__name__)

ExperimentLike = Experiment | str | Path
METHODS = ("pac-dp", "fixed", "dp-fedavg", "fedavg")


class Result(RunResult):
    """The result of :func:`run`: metrics and guarantees, the plan, the rounds and the model."""

    def report(self, path: Path | str, *, title: str | None = None) -> Path:
        """Write the run as one HTML page that loads nothing from elsewhere."""
        return report(self, path, title=title)


def load_experiment(
    experiment: ExperimentLike,
    *,
    profile: str | None = None,
    changes: Changes = (),
    configuration: TunedConfiguration | Path | str | None = None,
    curves: bool = True,
) -> Experiment:
    """Load an experiment, in one of its sizes, with single settings changed.

    ``profile`` is ``smoke``, ``desk`` or ``full``. ``configuration`` is what :func:`tune` has
    chosen, or the file in which it was saved. Without ``curves`` the files of curves are not read:
    they may not exist yet.

    >>> load_experiment("heart", changes={"training.rounds": 5}).training.rounds
    5
    """
    if isinstance(experiment, Experiment):
        if profile is not None or changes:
            raise InputError("profile, changes: are for an experiment that is given by name")
        loaded = experiment
    else:
        # A tuned configuration brings its own curve.
        curves = curves and configuration is None
        loaded = read_experiment(str(experiment), profile=profile, changes=changes, curves=curves)
    if configuration is None:
        return loaded
    tuned = (
        configuration
        if isinstance(configuration, TunedConfiguration)
        else TunedConfiguration.load(Path(configuration))
    )
    contradicted = find_contradiction(tuned, changes)
    if contradicted is not None:
        raise InputError(f"{contradicted}: the configuration has chosen otherwise; leave it out")
    return apply_configuration(loaded, tuned)


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
    """Decide everything about a training without training: noise, bounds, releases, guarantees.

    ``method`` is a name, a name with settings such as ``fixed:clipping_bound=5``, the path
    ``module:Class`` of a method of one's own, or a :class:`~pacdp.methods.Method`; by default it is
    the experiment's. ``profile``, ``changes`` and ``configuration`` are those of
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
    """Fit the curve F on public proxy data, under the experiment's own plan.

    ``scores`` is a file that keeps the scores of the grid as they come, so that a fit which was
    stopped continues from there. ``worker`` trains the cells of the grid: see
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

    ``seeds`` is the number of trainings of each candidate, ``sweeps`` the maximum number of passes
    over the search space. The result can be saved, and given to :func:`run` as ``configuration``.
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

    The arguments up to ``configuration`` are those of :func:`plan`. A method that needs a curve
    which the experiment does not have gets one that is fitted first. ``folder`` is a new folder for
    the files of the run, or with ``resume`` that of a run which was stopped. ``ledgers`` are the
    clients' own; with durable ones noise comes from the operating system, and no two runs are the
    same. ``on_round`` is called with the result of each round. ``command`` is shown in the report
    of the folder as what makes it again.

    >>> result = run("heart", method="fixed", profile="smoke")
    >>> client = result.clients[0]
    >>> client.epsilon_budget, round(client.epsilon_spent, 6), client.delta, client.adjacency
    (0.1, 0.1, 1e-05, 'zero-out')
    """
    if resume and folder is None:
        raise InputError("resume: needs the folder of the stopped run")
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
        checkpoint=None if files is None else files.checkpoint,
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
    """Run several methods under the same budgets, each with the seeds 0, 1, ..., without models.

    ``configurations`` are what :func:`tune` has chosen, by method; the other methods run under the
    experiment's own settings. A method that lacks a curve gets one that is fitted once for all.

    >>> comparison = compare("heart", ["fixed", "fedavg"], seeds=1, profile="smoke")
    >>> list(comparison.groups)
    ['fixed', 'fedavg']
    """
    names = list(methods)
    if not names or len(set(names)) != len(names):
        raise InputError(f"methods {', '.join(names)!r}: must be different names, at least one")
    number, chosen = int(require_count("seeds", seeds)), dict(configurations or {})
    plain = [name for name in names if name not in chosen]
    # The files of curves need not exist where every method brings its own.
    base = load_experiment(experiment, profile=profile, changes=changes, curves=bool(plain))
    experiments = {
        name: load_experiment(
            experiment, profile=profile, changes=changes, configuration=chosen[name]
        )
        if name in chosen
        else base
        for name in names
    }
    curve = _fit_missing_curve(base, plain, progress=progress)
    built = {name: _build_method(experiments[name], name, curve) for name in names}
    groups: dict[str, list[RunResult]] = {name: [] for name in names}
    for place, name in enumerate(names):
        for seed in range(number):
            done = place * number + seed
            progress("comparing", done, len(names) * number, f"{name}, seed {seed}")
            prepared = prepare_run(
                experiments[name], method=built[name], seed=seed, progress=progress
            )
            result = RunResult.of(prepared, simulate_run(prepared), profile=profile)
            # The models of all runs may not fit into memory.
            groups[name].append(result.without_weights())
    progress("comparing", len(names) * number, len(names) * number)
    return Comparison(groups)


def report(
    results: Comparison | RunResult | Iterable[RunResult | Path | str],
    path: Path | str,
    *,
    title: str | None = None,
    description: str | None = None,
    command: Sequence[str] = (),
) -> Path:
    """Write results as one HTML page that loads nothing from elsewhere, and return its path.

    ``results`` are those of :func:`run` or :func:`compare`, or the folders of finished runs. The
    page must not exist yet.
    """
    page = require_new_file(Path(path))
    folders: list[Path] = []
    if isinstance(results, RunResult):
        results = [results]
    if not isinstance(results, Comparison):
        given = [item if isinstance(item, RunResult) else Path(item) for item in results]
        folders = [item for item in given if isinstance(item, Path)]
        results = Comparison.of(
            item if isinstance(item, RunResult) else RunResult.load(item) for item in given
        )
    write_report(
        page,
        results.groups,
        command=command,
        folders=folders,
        description=description,
        title=title,
    )
    return page


def require_new_file(path: Path) -> Path:
    """Return a path at which nothing is yet, in a folder that exists; refuse any other."""
    if path.exists():
        raise InputError(f"{path}: exists already, and is not touched")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist")
    return path


def require_seed(seed: int) -> int:
    """Return a seed that can be used, and refuse any other."""
    if not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed}: must be a whole number from 0 to 2^63 - 1")
    return seed


def split_method(text: str) -> tuple[str, dict[str, float]]:
    """The name and the settings of ``NAME:key=value``; a name may be ``module:Class``.

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
    """Build the method, with a curve if it lacks one."""
    if isinstance(method, Method):
        return method
    name, settings = split_method(experiment.method if method is None else method)
    tuned = experiment.tuning
    if tuned is not None and tuned["method"] != name:
        raise InputError(f"configuration: was made for {tuned['method']}, must be for {name}")
    fitted = {} if curve is None else dict.fromkeys(experiment.missing_settings(name), curve)
    return experiment.build_method(name, settings | fitted)


def _fit_missing_curve(
    experiment: Experiment,
    methods: Sequence[Method | str | None],
    *,
    seed: int = 0,
    saved: Path | None = None,
    progress: Progress,
) -> Curve | None:
    """Fit a curve if a method needs one and the experiment has none; or load a saved one."""
    texts = [experiment.method if name is None else name for name in methods]
    names = [split_method(text)[0] for text in texts if isinstance(text, str)]
    if not any(experiment.missing_settings(name) for name in names):
        return None
    if saved is not None and saved.is_file():
        return Curve.load(saved, advice=RUN_AGAIN)
    proxy_task = make_proxy_task(experiment, seed=seed, progress=progress)
    _LOGGER.warning("no curve is given: fitting one on %s", proxy_task.proxy.data.name)
    return fit_curve(proxy_task, experiment.offline, progress=progress)
