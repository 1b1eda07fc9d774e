"""Whether a change of the code has changed a number: small cases of everything, kept and compared.

``python -m benchmarks.same_numbers save FILE`` computes them all and keeps them;
``python -m benchmarks.same_numbers compare FILE`` computes them again, says of each whether it is
the same bit for bit, and exits with 1 if any has moved by more than rounding. With ``--only train
plans`` only these sections are computed. Nothing is downloaded. Both must be done on one machine:
another processor rounds otherwise.

The first part alone calls the package; where the package's names change, nothing else here does.
"""

import argparse
import json
import math
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pacdp.curve import Curve
from pacdp.data import (
    Dataset,
    Partition,
    Provenance,
    Proxy,
    Records,
    load_dataset,
    load_proxy,
    partition_records,
)
from pacdp.errors import DataError, InputError
from pacdp.experiments import PreparedRun, RunResult, list_experiments, prepare_run, read_experiment
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.prepare import plan_run, read_data
from pacdp.federation import (
    Aggregation,
    Checkpoint,
    LocalModel,
    Model,
    Plan,
    Population,
    Privacy,
    Recipe,
    Result,
    Training,
    WarmStart,
    make_plan,
    simulate,
)
from pacdp.federation.results import RoundResult, signal_to_noise
from pacdp.federation.warm_start import train_warm_start
from pacdp.methods import METHODS, build_method
from pacdp.models import count_parameters
from pacdp.offline import Cell, Grid, Offline, ProxyTask, fit_curve
from pacdp.offline.grid import run_grid, train_in_process
from pacdp.offline.grid_simulation import score_pairs, score_plans
from pacdp.schedule import Schedule
from pacdp.tasks import Classification, Regression
from pacdp.tuning import TunedConfiguration, apply_configuration, tune

# Numbers and words of any depth, as a file can hold them.
Tree = Any
Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training in the words of an experiment file."""

    data: str = "heart"
    options: Settings = field(default_factory=dict)
    partition: str = "natural"
    clients: int | None = None
    method: str = "pac-dp"
    settings: Settings = field(default_factory=dict)
    """The method's, beside those that it cannot do without."""
    training: Settings = field(default_factory=dict)
    privacy: Settings = field(default_factory=dict)
    server: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    own_model: Callable[[], nn.Module] | None = None
    hot_start: Settings | None = None
    failure_rate: float = 0.0
    evaluate_every: int = 1
    stopped_after: int | None = None
    """After so many rounds the training is stopped, and taken up again."""
    seed: int = 0


CURVE = {"family": "power", "coefficients": [0.5, 0.25], "domain": [0.01, 10.0]}

# ------------------------------------------------------------------------------------------------
# The adapter: all calls of the package. What follows this part makes none.
#
#   METHOD_NAMES, ENGINES, EXPERIMENTS, ...           what there is
#   train(case, engine) -> numbers, or None           a training; None where the engine refuses it
#   grid(case, budgets, bounds, seeds, way) -> numbers    scores on the proxy
#   scores_of_seeds(case, seeds, way) -> numbers      those of a plan with everyone's own budget
#   curve(case, offline, way) -> numbers              F, fitted on a grid
#   run(experiment, ...) -> numbers                   an experiment from its file to its result
#   tuned(experiment, method, ...) -> numbers         what the search chose, and a run of it
#   command(*words) -> numbers                        what ``pacdp run`` and its like print
#   planned(experiment, profile, method) -> numbers, or None without the data
#
# Numbers are mappings of anything that can be compared: tensors, numbers, words, lists of them.
# ------------------------------------------------------------------------------------------------

METHOD_NAMES = tuple(METHODS)
# As they are called in files of numbers, and as they are called now.
ENGINES = {
    "one-by-one": "serial",
    "stacked": "stacked",
    "threads": "threaded",
    "auto": "auto",
}
SEVERAL_CORES = ("threads", "auto")
EXPERIMENTS = tuple(list_experiments())
GRID_WAYS = ("as it chooses", "together", "one by one")
SEED_WAYS = ("together", "one by one")
CURVE_WAYS = ("as it chooses", "one by one")
PROFILES = (None, "smoke", "desk", "full")
# Name the folders of downloaded data and of what can be computed again.
FOLDERS = ("PACDP_DATA_DIR", "PACDP_CACHE_DIR")

# What is kept of a client's guarantee, and of a round.
_CLIENT = (
    *("id", "records", "epsilon_budget", "epsilon_planned", "epsilon_realised", "epsilon_ledger"),
    *("releases", "releases_planned", "noise_multiplier", "noise_multiplier_range"),
    *("mu_realised", "sampling_rate", "label", "refused", "failed", "accuracy"),
)
_ROUND = ("round", "asked", "answered", "epsilon_spent", "clipping_bound", "accuracy", "loss")


@cache
def _read(data: str, options: str, kind: str, clients: int | None) -> tuple[Dataset, Partition]:
    if data in TABLES:
        table = TABLES[data]()
        train, test = (Records(**table.pop(part)) for part in ("train", "test"))
        terms = Provenance(source="generated", licence="public domain")
        classes = table.pop("classes")
        task = Classification(len(classes)) if classes else Regression()
        dataset = Dataset(name=data, train=train, test=test, provenance=terms, task=task, **table)
    else:
        dataset = load_dataset(data, **json.loads(options))
    return dataset, partition_records(dataset, kind, clients=clients)


def _data(case: Case) -> tuple[Dataset, Partition]:
    return _read(case.data, json.dumps(case.options), case.partition, case.clients)


def _plan(case: Case, dataset: Dataset, split: Partition) -> Plan:
    needed = dict.fromkeys(METHODS[case.method].required_settings, CURVE)
    method = build_method(case.method, {**needed, **case.settings})
    return make_plan(_recipe(case), method, Population.of(dataset, split), case.seed)


def _recipe(case: Case) -> Recipe:
    return Recipe(
        training=Training.model_validate(case.training),
        privacy=Privacy.model_validate(case.privacy),
        server=Aggregation.model_validate(case.server),
        model=Model.model_validate(case.model),
        hot_start=None if case.hot_start is None else WarmStart.model_validate(case.hot_start),
    )


def _numbers(result: Result) -> dict[str, Tree]:
    return {
        "weights": dict(result.model),
        "metrics": {**result.metrics, "chance": result.chance},
        "clients": [
            {key: row[key] for key in _CLIENT}
            for row in (
                client.model_dump(mode="json", by_alias=True) for client in result.clients()
            )
        ],
        "rounds": [
            {key: row[key] for key in _ROUND if key in row}
            for row in (one.to_json() for one in result.history)
        ],
    }


class _StoppedError(Exception):
    pass


def train(case: Case, engine: str) -> dict[str, Tree] | None:
    """A training; None where the engine does not take it."""
    dataset, split = _data(case)
    plan = _plan(case, dataset, split)
    initial = None
    if plan.hot_start is not None:
        public = load_proxy(case.data).data
        initial = train_warm_start(LocalModel(plan), public, plan.hot_start, seed=case.seed)
    settings: dict[str, Any] = {
        "initial": initial,
        "failure_rate": case.failure_rate,
        "evaluate_every": case.evaluate_every,
        "make_model": case.own_model,
        "engine": ENGINES[engine],
    }

    def stop(row: RoundResult) -> None:
        if row.round == case.stopped_after:
            raise _StoppedError

    try:
        if case.stopped_after is None:
            return _numbers(simulate(plan, dataset, split, **settings))
        with tempfile.TemporaryDirectory() as folder:
            kept = Checkpoint(Path(folder) / "checkpoint.pt", run=plan.run)
            with suppress(_StoppedError):
                simulate(plan, dataset, split, checkpoint=kept, on_round=stop, **settings)
            return _numbers(simulate(plan, dataset, split, checkpoint=kept, **settings))
    except InputError as error:
        if str(error).startswith("engine = "):
            return None
        raise


@cache
def _proxy(data: str, options: str) -> Proxy:
    if data in TABLES or options != "{}":
        return Proxy(data=_read(data, options, "iid", 2)[0], stands_for=data, made_by="itself")
    return load_proxy(data)


def _setting(case: Case) -> ProxyTask:
    _, split = _data(case)
    return ProxyTask(
        proxy=_proxy(case.data, json.dumps(case.options)),
        sizes=split.sizes_by_client,
        recipe=_recipe(replace(case, hot_start=None)),
        schedule=Schedule.model_validate(case.settings.get("schedule", {})),
        partition=split.kind,
        settings=dict(split.settings),
    )


def _alone(setting: ProxyTask, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
    for cell in cells:
        yield cell, setting.score(cell.epsilon, cell.bound, cell.seed)


def grid(
    case: Case,
    budgets: tuple[float, ...],
    bounds: tuple[float, ...],
    seeds: tuple[int, ...],
    way: str,
) -> dict[str, Tree]:
    """Scores (seeds, budgets, bounds) of trainings on the proxy."""
    setting = _setting(case)
    if way == "together":
        pairs = [(epsilon, bound) for epsilon in budgets for bound in bounds]
        found = np.array(score_pairs(setting, pairs, seeds))
        return {"scores": found.reshape(len(seeds), len(budgets), len(bounds)).tolist()}
    worker = train_in_process if way == "as it chooses" else _alone
    matrix = run_grid(setting, Grid(budgets, bounds, seeds), worker=worker)
    return {"scores": matrix.scores.tolist()}


def scores_of_seeds(case: Case, seeds: Sequence[int], way: str) -> dict[str, Tree]:
    """Scores of one plan under several seeds, each client with its own budget."""
    setting = _setting(case)
    records = [setting.records(seed) for seed in seeds]
    plans = [_plan(replace(case, seed=s), *own) for s, own in zip(seeds, records, strict=True)]
    if way == "together":
        return {"scores": score_plans(plans, records)}
    results = [simulate(plan, *own) for plan, own in zip(plans, records, strict=True)]
    return {"scores": [result.plan.task.score(result.metrics) for result in results]}


def curve(case: Case, offline: Settings, way: str) -> dict[str, Tree]:
    """F, and what it was fitted on."""
    worker = train_in_process if way == "as it chooses" else _alone
    return _curve(fit_curve(_setting(case), Offline.model_validate(offline), worker=worker))


def _curve(made: Curve) -> dict[str, Tree]:
    kept = ("bounds", "scores", "choices", "expected", "outliers", "families", "regret", "rates")
    return {
        "curve": [made.family, list(made.coefficients), list(made.domain)],
        "evidence": {
            key: value
            for key, value in made.require_evidence().model_dump(mode="json").items()
            if key in kept
        },
    }


def _ran(ready: PreparedRun) -> dict[str, Tree]:
    result = simulate_run(ready)
    found = RunResult.of(ready, result).to_json()
    kept = ("before_private_data", "accuracy_by_budget", "parameters", "bytes_per_round")
    ratios = [client["signal_to_noise"] for client in found["clients"]]
    return {
        **_numbers(result),
        "summary": {key: found[key] for key in kept} | {"signal_to_noise": ratios},
    }


def run(
    name: str,
    *,
    profile: str | None = None,
    changes: Sequence[str] = (),
    method: str | None = None,
    seed: int = 0,
) -> dict[str, Tree]:
    """An experiment as its file has it, with some settings changed."""
    experiment = read_experiment(name, profile=profile, changes=changes)
    made = experiment.build_method(
        method, dict.fromkeys(experiment.missing_settings(method or experiment.method), CURVE)
    )
    return _ran(prepare_run(experiment, method=made, seed=seed))


def tuned(
    name: str, method: str, *, changes: Sequence[str] = (), **settings: Any
) -> dict[str, Tree]:
    """What a search chose, each of its steps, and a run of the plan."""
    experiment = read_experiment(name, changes=changes, curves=False)
    found: TunedConfiguration = tune(experiment, method=method, **settings)
    numbers = {
        "point": found.chosen,
        "changes": _without("evidence", found.changes),
        "expected": [found.expected.metric, found.expected.mean, found.expected.deviation],
        "steps": list(found.why),
        "trainings": found.trainings,
    }
    final = apply_configuration(experiment, found)
    return {**numbers, **_ran(prepare_run(final, method=final.build_method(method), seed=100))}


def command(*words: str) -> dict[str, Tree]:
    """What the command line prints as JSON; with ``--out`` also the weights in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        given = [str(out) if word == "FOLDER" else word for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "pacdp", *given, "--json"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"pacdp {' '.join(words)}: {done.stderr[-2000:]}")
        numbers = {"printed": _without("seconds", json.loads(done.stdout))}
        return numbers | ({"weights": load_file(out / "model.safetensors")} if out.is_dir() else {})


def _without(name: str, content: Tree) -> Tree:
    if isinstance(content, Mapping):
        return {key: _without(name, own) for key, own in content.items() if key != name}
    return [_without(name, own) for own in content] if isinstance(content, list) else content


def planned(name: str, profile: str | None, method: str) -> dict[str, Tree] | None:
    """The plan of an experiment; None where its data would have to be downloaded."""
    experiment = read_experiment(name, profile=profile)
    made = experiment.build_method(
        method, dict.fromkeys(experiment.missing_settings(method), CURVE)
    )
    try:
        dataset, split = read_data(experiment.data, seed=0)
    except DataError:
        return None
    plan = plan_run(experiment, made, dataset, split, seed=0)
    guarantees = [plan.planned_guarantee(client) for client in range(len(plan.clients))]
    return {
        "hash": plan.run,
        "noise": [task.noise_multiplier for task in plan.clients],
        "clients": [task.model_dump(mode="json") for task in plan.clients],
        "epsilon": [None if one is None else one.epsilon for one in guarantees],
        "bounds": [
            made.bound(task.epsilon, round=number, rounds=plan.rounds)
            for task in plan.clients
            for number in range(plan.rounds)
            if made.private
        ],
        "participants": [list(plan.participants(number)) for number in range(plan.rounds)],
        "signal to noise": [
            signal_to_noise(client, count_parameters(LocalModel(plan).model))
            for client in plan.clients
        ],
    }


# ------------------------------------------------------------------------------------------------
# The cases, in plain words.
# ------------------------------------------------------------------------------------------------


def _line() -> dict[str, Any]:
    """A regression."""
    random = np.random.default_rng(0)
    features = random.normal(size=(150, 4)).astype(np.float32)
    values = features @ [0.3, -0.2, 0.1, 0.4] + 0.1 * random.normal(size=150)
    labels = values.astype(np.float32)
    return {
        "train": {"features": features[:90], "labels": labels[:90]},
        "test": {"features": features[90:], "labels": labels[90:]},
        "classes": (),
    }


def _patients() -> dict[str, Any]:
    """Three records of each patient, and one ε for all of them."""
    random = np.random.default_rng(1)
    features = random.normal(size=(180, 5)).astype(np.float32)
    labels = (features[:, 0] + 0.5 * random.normal(size=180) > 0).astype(np.int64)
    units = np.arange(120) // 3
    return {
        "train": {
            "features": features[:120],
            "labels": labels[:120],
            "units": units,
            "clients": np.minimum(units // 10, 2),
        },
        "test": {"features": features[120:], "labels": labels[120:]},
        "classes": ("well", "ill"),
        "clients": ("north", "south", "west"),
        "unit": "patient",
    }


def _tokens() -> dict[str, Any]:
    """Rows of tokens."""
    random = np.random.default_rng(2)
    features = random.integers(0, 10, size=(90, 6))
    labels = (features.sum(1) > 27).astype(np.int64)
    return {
        "train": {"features": features[:60], "labels": labels[:60]},
        "test": {"features": features[60:], "labels": labels[60:]},
        "classes": ("low", "high"),
    }


TABLES = {"line": _line, "patients": _patients, "tokens": _tokens}


class _Net(nn.Module):
    """A model of one's own that is no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(5)
            self.first, self.second = nn.Linear(13, 4), nn.Linear(13, 4)
            self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores."""
        return torch.as_tensor(self.head(torch.tanh(self.first(inputs)) * self.second(inputs)))


OWN = {"epsilon": [0.5, 2.0, 1.0, 5.0]}
STEPS = Case(
    training={
        "rounds": 4,
        "clients_per_round": 3,
        "local_steps": 3,
        "optimiser": {"name": "sgd", "lr": 0.5},
    },
    privacy=OWN,
)
BATCHES = Case(
    training={"rounds": 3, "batch": 32, "local_epochs": 2, "optimiser": {"lr": 0.2}},
    privacy=OWN,
    seed=3,
)
LINE = Case(
    data="line",
    partition="iid",
    clients=3,
    training={"rounds": 3, "batch": 16, "local_epochs": 2, "optimiser": {"lr": 0.1}},
    privacy={"epsilon": [1.0, 5.0, 20.0]},
)
PATIENTS = Case(
    data="patients",
    training={"rounds": 3, "batch": 5, "local_epochs": 1, "optimiser": {"lr": 0.3}},
    privacy={"epsilon": [1.0, 5.0, 2.0]},
)
TOKENS = Case(
    data="tokens",
    partition="iid",
    clients=3,
    model={"name": "sequence", "settings": {"vocabulary": 10, "width": 4, "hidden": 5}},
    training={"rounds": 2, "batch": 10, "local_epochs": 1, "optimiser": {"lr": 0.3}},
    privacy={"epsilon": [1.0, 5.0, 2.0]},
)
IMAGES = Case(
    data="synthetic",
    options={"shape": [1, 16, 16], "classes": 3, "records": 240, "clients": 4},
    model={"name": "cnn"},
    training={
        "rounds": 2,
        "clients_per_round": 3,
        "batch": 20,
        "local_epochs": 1,
        "optimiser": {"lr": 0.2},
    },
    privacy=OWN,
)
UNIFORM = {
    "rounds": 6,
    "clients_per_round": 2,
    "sampling": "uniform",
    "cap": 0.3,
    "local_steps": 2,
    "optimiser": {"lr": 0.5},
}
RULES = ("size", "epsilon", "inverse-noise", "tempered", "inverse-variance")
MLP = {"name": "mlp", "settings": {"hidden": 5}}


def _changed(case: Case, **training: Any) -> Case:
    return replace(case, training={**case.training, **training})


def trainings() -> Iterator[tuple[str, Case]]:
    """Every training, by its name; each is tried in every engine."""
    for words, case in (
        ("steps on all records", STEPS),
        ("mini-batches", BATCHES),
        ("regression", LINE),
        ("patients", PATIENTS),
        ("images, cnn", IMAGES),
        ("images, mlp", replace(IMAGES, model=MLP)),
    ):
        for method in METHOD_NAMES:
            yield f"{words}/{method}", replace(case, method=method)
    for rule in RULES:
        for method in ("pac-dp", "fixed", "cgm-median", "aqc"):
            yield (
                f"weights by {rule}/{method}",
                replace(STEPS, method=method, server={"weights": rule}),
            )
    for method in ("pac-dp", "aqc", "nbafl"):
        for optimiser, rate in (("momentum", 0.7), ("adam", 0.05)):
            server = {"optimiser": optimiser, "lr": rate}
            yield f"server {optimiser}/{method}", replace(STEPS, method=method, server=server)
            client = {"name": optimiser, "lr": rate / 5}
            yield (
                f"client {optimiser}/{method}",
                _changed(replace(BATCHES, method=method), optimiser=client),
            )
        named = replace(STEPS, method=method)
        yield f"failures/{method}", replace(named, failure_rate=0.4, seed=1)
        yield f"hot start/{method}", replace(named, hot_start={"epochs": 2, "batch": 50})
        yield f"last models averaged/{method}", replace(named, server={"average_last": 0.5})
        yield f"refusals/{method}", replace(named, training=UNIFORM)
        yield f"stopped and resumed/{method}", replace(named, stopped_after=2, failure_rate=0.2)
        yield f"replace-one/{method}", replace(named, privacy={**OWN, "adjacency": "replace-one"})
        yield (
            f"budget per release/{method}",
            replace(named, privacy={**OWN, "scope": "per-release"}),
        )
        late = {**OWN, "spending": {"policy": "late", "growth": 3}}
        yield f"spending late/{method}", replace(named, privacy=late)
        replan = {**OWN, "spending": {"policy": "replan"}}
        yield f"spending replanned/{method}", replace(named, privacy=replan, training=UNIFORM)
        yield f"own model/{method}", replace(named, own_model=_Net)
        yield f"tokens/{method}", replace(TOKENS, method=method)
        yield f"seldom evaluated/{method}", replace(named, evaluate_every=3)
    skewed = replace(BATCHES, partition="dirichlet", clients=6, seed=7)
    levels = {"levels": [0.1, 1.0, 3.0], "shares": [0.5, 0.3, 0.2]}
    yield "dirichlet, budgets in levels", replace(skewed, privacy={"epsilon": levels})
    sampled = {"epsilon": {**levels, "assignment": "sampled"}}
    many = replace(STEPS, partition="quantity", clients=12, privacy=sampled)
    yield "many clients, budgets by chance", _changed(many, clients_per_round=5)
    yield "mlp", replace(BATCHES, model=MLP)
    yield "without bias", replace(STEPS, model={"settings": {"bias": 0.0}, "seed": 9})
    yield "no schedule", replace(STEPS, settings={"schedule": {"kind": "none"}})
    bent = {"family": "quadratic", "coefficients": [-0.1, 0.6, 0.3], "domain": [0.1, 5.0]}
    yield "quadratic curve", replace(STEPS, settings={"curve": bent})
    knots = {"family": "piecewise", "coefficients": [0.5, 0.2, 1.0, 0.4, 5.0, 0.9]}
    yield "piecewise curve", replace(STEPS, settings={"curve": knots})
    yield (
        "noise on the models sent",
        _changed(replace(STEPS, method="nbafl-original"), clients_per_round=1),
    )
    for accountant in ("rdp", "basic"):
        yield f"accountant {accountant}", replace(STEPS, privacy={**OWN, "accountant": accountant})


REHEARSALS = {
    "heart": BATCHES,
    "heart, mlp": replace(BATCHES, model=MLP),
    "heart, uniform": replace(
        STEPS,
        training=UNIFORM,
        server={"weights": "inverse-variance", "optimiser": "momentum", "average_last": 0.5},
    ),
    "heart, dirichlet": replace(STEPS, partition="dirichlet", clients=4),
    "heart, replanned": replace(
        STEPS,
        training=UNIFORM,
        privacy={**OWN, "adjacency": "replace-one", "spending": {"policy": "replan"}},
        server={"optimiser": "adam", "lr": 0.1},
        settings={"schedule": {"kind": "none"}},
    ),
    "regression": LINE,
    "regression, mlp": replace(LINE, model=MLP),
    "regression, client adam": _changed(LINE, optimiser={"name": "adam", "lr": 0.05}),
}
FITS: dict[str, Settings] = {
    "plateau": {},
    "argmax": {"rule": "argmax"},
    "quadratic": {"family": "quadratic"},
    "piecewise": {"family": "piecewise"},
    "widened, other rates": {"bounds": [3.0, 6.0, 12.0], "widen": 1, "rates": [0.1, 2.0]},
}
SMALL_GRID = {
    "budgets": {"low": 0.05, "high": 5.0, "count": 4},
    "bounds": {"low": 0.05, "high": 5.0, "count": 5},
    "seeds": 2,
}

# The name of some entries, and what computes them; None where there are none.
Job = tuple[str, Callable[[], dict[str, Tree] | None]]


def train_jobs() -> Iterator[Job]:
    """Final weights, metrics, clients and rounds of every training in every engine."""
    for name, case in trainings():
        for engine in ENGINES:
            yield f"{name}/{engine}", partial(_trained, case, engine)


def _trained(case: Case, engine: str) -> dict[str, Tree] | None:
    # An engine that may use several cores gets two, whatever the machine has.
    torch.set_num_threads(2 if engine in SEVERAL_CORES else 1)
    try:
        return train(case, engine)
    finally:
        torch.set_num_threads(1)


def offline_jobs() -> Iterator[Job]:
    """Grids and curves, in every way that they can be computed."""
    axes = (0.1, 2.0), (0.1, 1.0, 5.0), (1, 3)
    for name, case in REHEARSALS.items():
        for way in GRID_WAYS:
            yield f"grid/{name}/{way}", partial(grid, case, *axes, way)
        for way in SEED_WAYS:
            yield f"seeds/{name}/{way}", partial(scores_of_seeds, case, (0, 5), way)
    small = (1.0,), (0.5, 5.0), (0,)
    yield "grid/images, cnn/as it chooses", partial(grid, IMAGES, *small, "as it chooses")
    for name in ("heart", "regression"):
        for words, change in FITS.items():
            for way in CURVE_WAYS:
                fitted = partial(curve, REHEARSALS[name], {**SMALL_GRID, **change}, way)
                yield f"curve/{name}, {words}/{way}", fitted


def tuned_jobs() -> Iterator[Job]:
    """What the search chooses, step by step."""
    for method in METHOD_NAMES:
        yield f"heart/{method}", partial(tuned, "heart", method, seeds=2, sweeps=1)
    for method in ("pac-dp", "fixed", "cgm-median"):
        search = partial(tuned, "heart-personalised", method, seeds=2)
        yield f"heart-personalised/{method}", partial(search, sweeps=2)
        some = partial(search, sweeps=1, only=["rounds", "bound"])
        yield f"heart-personalised, two settings alone/{method}", some
    yield "heart-dnn/pac-dp", partial(tuned, "heart-dnn", "pac-dp", seeds=2, sweeps=1)


def run_jobs() -> Iterator[Job]:
    """Experiments, from the package and from the command line."""
    line = ("run", "heart-personalised", "--seed", "0")
    yield "pacdp run heart-personalised", partial(command, *line, "--out", "FOLDER")
    other = ("--profile", "full", "--method", "aqc", "--engine", "serial")
    yield "pacdp run, another method and size", partial(command, *line, *other)
    methods = "pac-dp,fixed:clipping_bound=5,dp-fedavg,fedavg"
    both = ("compare", "heart", "--seeds", "2", "--methods", methods)
    yield "pacdp compare heart", partial(command, *both)
    for method in METHOD_NAMES:
        named = partial(run, "heart-personalised", method=method, seed=4)
        yield f"heart-personalised/{method}", named
    changes = {
        "hot start": ["hot_start.epochs=3"],
        "clinical features": ['data.options.features="clinical"'],
        "failures": ["failure_rate=0.3", "evaluate_every=4"],
        "skewed": ["data.partition=dirichlet", "data.clients=5"],
    }
    for words, change in changes.items():
        yield f"heart, {words}", partial(run, "heart", changes=change)
    yield "heart, full", partial(run, "heart", profile="full", changes=["training.rounds=3"])
    yield "heart-dnn", partial(run, "heart-dnn")
    for name in ("mnist", "cifar10", "cifar100"):
        yield f"{name}, smoke", partial(run, name, profile="smoke")


def plan_jobs() -> Iterator[Job]:
    """Hashes, noise and bounds of the shipped experiments that need no download."""
    for name in EXPERIMENTS:
        for profile in PROFILES:
            every = name == "heart-personalised" and profile is None
            for method in METHOD_NAMES if every else ("pac-dp", "fixed"):
                where = f"{name}, {profile or 'as published'}/{method}"
                yield where, partial(planned, name, profile, method)


SECTIONS: dict[str, Callable[[], Iterator[Job]]] = {
    "plans": plan_jobs,
    "train": train_jobs,
    "offline": offline_jobs,
    "tuned": tuned_jobs,
    "run": run_jobs,
}

# ------------------------------------------------------------------------------------------------
# Keeping and comparing them.
# ------------------------------------------------------------------------------------------------

# Relative to the number itself, or to one where it is smaller.
ALLOWED = 1e-6


@dataclass(frozen=True)
class Verdict:
    """How one entry has changed."""

    words: str
    same: bool
    """Bit for bit."""
    good: bool
    """To rounding."""


def entries(sections: Sequence[str], *, strict: bool) -> Iterator[tuple[str, Tree | Exception]]:
    """Every entry by its name; what cannot be computed is an error, raised if ``strict``."""
    torch.set_num_threads(1)
    seen = set()
    with tempfile.TemporaryDirectory() as empty:
        # Neither data that were downloaded nor anything computed before goes in.
        os.environ.update(dict.fromkeys(FOLDERS, empty))
        for section in sections:
            for name, compute in SECTIONS[section]():
                try:
                    found = compute()
                except Exception as error:
                    if strict:
                        raise RuntimeError(f"{section}/{name}: {error}") from error
                    yield f"{section}/{name}", error
                    continue
                for part, tree in (found or {}).items():
                    full = f"{section}/{name}/{part}"
                    if full in seen:
                        raise ValueError(f"{full}: is there twice")
                    seen.add(full)
                    yield full, plain(tree)


def plain(tree: Tree) -> Tree:
    """The same as dictionaries, lists, tensors, numbers and words."""
    if isinstance(tree, Mapping):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if isinstance(tree, Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"{type(tree).__name__}: cannot be kept")


def compared(before: Tree, after: Tree) -> Verdict:
    """Whether two trees hold the same.

    >>> compared({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}).words
    'bit-identical'
    >>> compared({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}).words
    'DIFFERENT: max abs difference 0.5; relatively most at a/1 (was 2.0, is 2.5)'
    """
    worst, place, same = 0.0, "", True
    was: Any = None
    now: Any = None
    largest = 0.0
    for where, one, other in leaves(before, after):
        if _bits(one) == _bits(other):
            continue
        same = False
        if not (_is_number(one) and _is_number(other)):
            words = f"DIFFERENT: {where}: was {one!r:.60}, is {other!r:.60}"
            return Verdict(words.replace(": :", ":"), False, False)
        apart = abs(other - one)
        if math.isnan(apart) or math.isinf(apart):
            return Verdict(f"DIFFERENT: {where}: was {one}, is {other}", False, False)
        largest = max(largest, apart)
        relative = apart / max(1.0, abs(one))
        if relative >= worst:
            worst, place, was, now = relative, where, one, other
    if same:
        return Verdict("bit-identical", True, True)
    most = f"relatively most at {place or 'itself'} (was {was}, is {now})"
    words = f"max abs difference {largest:.3g}; {most}"
    good = worst <= ALLOWED
    return Verdict(words if good else f"DIFFERENT: {words}", False, good)


_NOTHING = "nothing"


def leaves(one: Tree, other: Tree, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The ends of two trees, side by side, and where they are."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            inside = f"{where}/{key}".lstrip("/")
            yield from leaves(one.get(key, _NOTHING), other.get(key, _NOTHING), inside)
    elif isinstance(one, list) and isinstance(other, list):
        for number in range(max(len(one), len(other))):
            left, right = (own[number] if number < len(own) else _NOTHING for own in (one, other))
            yield from leaves(left, right, f"{where}/{number}".lstrip("/"))
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        kinds = [(own.dtype, tuple(own.shape)) for own in (one, other)]
        if kinds[0] != kinds[1]:
            yield where, str(kinds[0]), str(kinds[1])
        else:
            yield from leaves(one.flatten().tolist(), other.flatten().tolist(), where)
    else:
        yield where, one, other


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bits(value: Any) -> Any:
    """What must be equal: of a number its bits, so that NaN is itself and −0 is not 0."""
    return struct.pack("<d", value) if _is_number(value) else (type(value).__name__, repr(value))


def environment() -> dict[str, str]:
    """What the numbers may depend on beside the code."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def save(path: Path, sections: Sequence[str]) -> int:
    """Compute everything and keep it."""
    found = dict(entries(sections, strict=True))
    torch.save({"environment": environment(), "entries": found}, path)
    numbers = sum(1 for tree in found.values() for _ in leaves(tree, tree))
    print(f"{len(found)} entries with {numbers:,} values kept in {path}")
    return 0


def compare(path: Path, sections: Sequence[str]) -> int:
    """Compute everything again, and tell what has changed."""
    kept = torch.load(path, weights_only=True)
    for name, value in environment().items():
        if kept["environment"][name] != value:
            print(f"note: {name} was {kept['environment'][name]} and is {value}")
    missing = {
        name: tree for name, tree in kept["entries"].items() if name.split("/")[0] in sections
    }
    counts = dict.fromkeys(("bit-identical", "to rounding", "different", "new"), 0)
    for name, found in entries(sections, strict=False):
        if isinstance(found, Exception):
            # Its entries stay missing.
            print(f"{name}: DIFFERENT: {type(found).__name__}: {found}", flush=True)
            counts["different"] += not any(one.startswith(f"{name}/") for one in missing)
            continue
        if name not in missing:
            counts["new"] += 1
            print(f"{name}: new", flush=True)
            continue
        verdict = compared(missing.pop(name), found)
        kind = "bit-identical" if verdict.same else "to rounding" if verdict.good else "different"
        counts[kind] += 1
        print(f"{name}: {verdict.words}", flush=True)
    for name in missing:
        counts["different"] += 1
        print(f"{name}: DIFFERENT: is missing")
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    return 1 if counts["different"] else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_numbers")
    parser.add_argument("what", choices=["save", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS], default=[*SECTIONS])
    given = parser.parse_args()
    started = time.perf_counter()
    code = (save if given.what == "save" else compare)(given.file, given.only)
    print(f"{time.perf_counter() - started:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
