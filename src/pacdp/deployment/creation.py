"""Creating the folder of a federation, with everything that a trial on one machine needs."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from pacdp import api
from pacdp.data import Dataset, Records
from pacdp.deployment.kits import (
    list_modules,
    make_private_folder,
    make_settings,
    write_folder_atomically,
    write_node,
    write_superlink,
)
from pacdp.deployment.layout import (
    FederationFolder,
    FederationSettings,
    format_toml,
    require_short_paths,
    require_site_names,
)
from pacdp.deployment.population import adapt_experiment, select_clients
from pacdp.deployment.templates import write_container_files, write_units
from pacdp.errors import InputError
from pacdp.experiments import Experiment, PreparedRun
from pacdp.experiments.prepare import read_data
from pacdp.federation import Plan
from pacdp.flower.bundle import write_app
from pacdp.flower.commands import write_home
from pacdp.keys import create_key
from pacdp.privacy import SQLiteLedger
from pacdp.progress import Progress, ignore_progress
from pacdp.site.acceptance import propose_plan
from pacdp.storage import require_new_file


@dataclass(frozen=True, kw_only=True)
class FederationRequest:
    """The options of a new federation."""

    experiment: Experiment
    source: str
    """Name or path of the experiment."""
    method: str | None = None
    seed: int = 0
    sites: Sequence[str] | None = None
    """The clients that take part; None for all."""
    interval: float | None = None
    deadline: float = 300.0
    minimum: int | None = None
    """Replies that a round needs; None for half of the sites."""
    host: str = "127.0.0.1"
    port: int = 9092


def create_federation(
    path: Path, request: FederationRequest, *, progress: Progress = ignore_progress
) -> tuple[FederationFolder, Plan]:
    """Create the folder of a federation whose sites have all accepted the plan.

    This is for trials: one person holds the records of all sites and accepts on their behalf. If
    anything fails, nothing is left behind.
    """
    final = FederationFolder(require_new_file(path.resolve()))
    dataset, whole = read_data(request.experiment.data, seed=api.require_seed(request.seed))
    names = whole.clients if request.sites is None else request.sites
    dataset, partition = select_clients(dataset, whole, names)
    require_site_names(partition.clients)
    require_short_paths(final, partition.clients)
    settings = _check_settings(request, partition.clients)
    prepared = api.prepare(
        adapt_experiment(request.experiment, whole, partition),
        method=request.method,
        seed=request.seed,
        read=(dataset, partition),
        progress=progress,
    )
    if not prepared.plan.algorithm.private:
        raise InputError(
            f"method {prepared.plan.method}: has no privacy guarantee, so no site can accept it"
        )
    settings = settings.model_copy(update={"run": prepared.plan.run})

    def write(beside: Path) -> None:
        _write(FederationFolder(beside), final, settings, prepared, dataset, request.interval)

    write_folder_atomically(final.path, write)
    return final, prepared.plan


def _check_settings(request: FederationRequest, sites: Sequence[str]) -> FederationSettings:
    if request.interval is not None and not 0 < request.interval <= 3600:
        raise InputError(
            f"--interval = {request.interval:g}: is out of range, must be in (0, 3600]"
        )
    return make_settings(
        sites,
        experiment=request.source,
        run="",
        seed=request.seed,
        host=request.host,
        port=request.port,
        minimum=request.minimum,
        deadline=request.deadline,
    )


def _write(
    folder: FederationFolder,
    final: FederationFolder,
    settings: FederationSettings,
    prepared: PreparedRun,
    dataset: Dataset,
    interval: float | None,
) -> None:
    folder.settings_file.write_text(format_toml(settings.model_dump(mode="json")), encoding="utf-8")
    prepared.plan.save(folder.plan)
    for name in ("coordinator", "sites", "heads", "logs", "flower"):
        make_private_folder(folder.path / name)
    coordinator = create_key(folder.coordinator / "coordinator.key")
    keys, records = {}, prepared.partition.client_records(dataset)
    for number, name in enumerate(settings.sites):
        keys[name] = _write_site(
            folder,
            prepared.plan,
            number,
            records[number],
            coordinator=coordinator,
            interval=interval,
        )
    _write_coordinator(folder, settings, prepared, dataset.test, keys)
    _write_flower(folder, final, settings)
    write_units(folder.path / "systemd", settings)
    write_container_files(folder.path / "containers", settings)


def _write_site(
    folder: FederationFolder,
    plan: Plan,
    number: int,
    records: Records,
    *,
    coordinator: str,
    interval: float | None,
) -> str:
    """Write the files of a site, accept the plan for it, and return its public key."""
    name = plan.clients[number].name
    site_folder = make_private_folder(folder.site(name))
    _write_records(site_folder / "records.npz", records, unit=plan.unit)
    budget, ledger = plan.budget(number), site_folder / f"{name}.ledger"
    assert budget is not None
    SQLiteLedger.create(ledger, client=name, budget=budget, levels=plan.level_budgets(number))
    public = create_key(site_folder / "site.key")
    values = {
        "client": name,
        "data": "records.npz",
        "ledger": ledger.name,
        "plan": "plan.json",
        "coordinator": coordinator,
        "key": "site.key",
        "socket": "site.sock",
        "head": f"../../heads/{name}.head",
        "interval": interval,
        "modules": list_modules(folder.plan),
    }
    toml = folder.site_settings(name)
    toml.write_text(format_toml(values), encoding="utf-8")
    propose_plan(folder.plan, toml).accept()
    return public


def _write_coordinator(
    folder: FederationFolder,
    settings: FederationSettings,
    prepared: PreparedRun,
    test: Records,
    keys: dict[str, str],
) -> None:
    prepared.plan.save(folder.coordinator / "plan.json")
    _write_records(folder.coordinator / "evaluation.npz", test, unit=prepared.plan.unit)
    warm = prepared.plan.hot_start is not None
    if warm:
        save_file(prepared.initial, folder.coordinator / "initial.safetensors")
    values = {
        "plan": "plan.json",
        "key": "coordinator.key",
        "log": "run.db",
        "socket": "coordinator.sock",
        "results": "results",
        "minimum": settings.minimum,
        "deadline": settings.deadline,
        "evaluation": "evaluation.npz",
        "initial": "initial.safetensors" if warm else None,
        "modules": list_modules(folder.plan),
        "sites": keys,
    }
    folder.coordinator_settings.write_text(format_toml(values), encoding="utf-8")


def _write_flower(
    folder: FederationFolder, final: FederationFolder, settings: FederationSettings
) -> None:
    """Write certificates, keys and the app; any paths in them refer to the final folder."""
    write_superlink(folder.flower / "superlink", folder.flower / "ca.key", [settings.host])
    make_private_folder(folder.flower / "nodes")
    for name in settings.sites:
        write_node(folder.node(name))
        shutil.copyfile(folder.authority, folder.node(name) / "ca.crt")
    write_app(folder.flower / "app")
    home = make_private_folder(folder.flower / "home")
    write_home(home, authority=final.authority, address=f"127.0.0.1:{settings.port}")


def _write_records(path: Path, records: Records, *, unit: str) -> None:
    """Write the original records; the plan's features are computed when they are read."""
    arrays = {"features": records.features, "labels": records.labels}
    if unit != "record":
        # If the public test records have no units, each record is a unit.
        arrays["units"] = np.arange(len(records)) if records.units is None else records.units
    if records.budgets is not None:
        arrays["budgets"] = records.budgets
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
