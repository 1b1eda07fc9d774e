"""The folder that ``pacdp federation init`` writes, or does not write."""

import shutil
import stat
import subprocess
import tomllib

import numpy as np
import pytest

from pacdp.coordinator import CoordinatorSettings
from pacdp.data import load_dataset, partition_records
from pacdp.federation import Plan
from pacdp.flower.certificates import read_expiry
from pacdp.privacy import SQLiteLedger
from pacdp.site import SiteSettings
from tests.cli.command import refused, run

HEART = ("--experiment", "heart", "--method", "fixed", "--rounds", 3, "--port", 20100)


def init(folder, *options, **settings):
    return run("federation", "init", folder, *HEART, *options, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("init") / "f"
    process = init(path, "--interval", 0.5)
    assert "accepted on their behalf" in process.stdout
    return path


def test_every_site_has_its_own_records_and_nothing_else(folder):
    data = load_dataset("heart")
    partition = partition_records(data, "natural")
    plan = Plan.load(folder / "plan.json")
    assert plan.training.upload == "coarse"
    assert plan.rounds == 3
    for number, name in enumerate(partition.clients):
        own = folder / "sites" / name
        assert sorted(path.name for path in own.iterdir()) == sorted(
            ["site.toml", "records.npz", f"{name}.ledger", "site.key", "plan.json"]
        )
        with np.load(own / "records.npz") as arrays:
            records = partition.client_records(data)[number]
            assert np.array_equal(arrays["features"], records.features)
            assert np.array_equal(arrays["labels"], records.labels)
            assert set(arrays) == {"features", "labels"}
        settings = SiteSettings.load_toml(own / "site.toml")
        ledger = SQLiteLedger(settings.ledger)
        assert ledger.filter.budget == plan.budget(number)
        assert settings.head.read_text().strip() == ledger.head
        assert settings.accepted is not None
        assert settings.interval == 0.5


def test_nobody_else_can_read_secrets(folder):
    secret = [
        *folder.glob("sites/*/*.ledger"),
        *folder.glob("sites/*/records.npz"),
        *folder.rglob("*.key"),
        *folder.rglob("*.secret"),
    ]
    assert len(secret) == 4 + 4 + 4 + 1 + 1 + 1 + 4 + 5
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    folders = [folder, folder / "coordinator", *folder.glob("sites/*"), *folder.glob("flower/*/")]
    private = [path for path in folders if path.name != "app"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in private)


def test_the_app_holds_code_only(folder):
    files = {str(path.relative_to(folder)) for path in (folder / "flower/app").rglob("*.*")}
    assert {path.rpartition(".")[2] for path in files} == {"py", "toml"}
    text = "".join(path.read_text() for path in (folder / "flower/app").rglob("*.py"))
    assert "import pacdp\n" not in text
    assert "torch" not in text


def test_coordinator_settings_and_certificates(folder):
    settings = CoordinatorSettings.load_toml(folder / "coordinator" / "coordinator.toml")
    plan = Plan.load(settings.plan)
    assert list(settings.sites) == [client.name for client in plan.clients]
    assert settings.minimum == 2
    assert settings.initial is None
    with np.load(settings.evaluation) as arrays:
        assert len(arrays["labels"]) == len(load_dataset("heart").test)
    assert read_expiry(folder / "flower/superlink/server.crt") < read_expiry(
        folder / "flower/superlink/ca.crt"
    )
    home = tomllib.loads((folder / "flower/home/config.toml").read_text())
    assert str(folder) in str(home)


def test_units_pass_systemd(folder, tmp_path):
    """With stand-ins for the programs, which are not installed here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    units = []
    for unit in (folder / "systemd").glob("*.service"):
        text = unit.read_text()
        for place in ("/opt/pacdp/bin", "/opt/flower/bin"):
            text = text.replace(place, str(programs))
        command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        program = programs / command.removeprefix("ExecStart=").split()[0].rpartition("/")[2]
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        units.append(tmp_path / unit.name)
        units[-1].write_text(text)
    assert len(units) == 6
    process = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_units_are_closed(folder):
    units = {path.stem: path.read_text() for path in (folder / "systemd").glob("*.service")}
    users = {name: text.split("User=")[1].split()[0] for name, text in units.items()}
    assert users == {
        "pacdp-site": "pacdp-site",
        "pacdp-supernode": "pacdp-node",
        "pacdp-clientapp": "pacdp-app",
        "pacdp-serverapp": "pacdp-app",
        "pacdp-coordinator": "pacdp-coordinator",
        "pacdp-superlink": "pacdp-superlink",
    }
    for text in units.values():
        for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectProc=invisible"):
            assert line in text
        assert "MemoryMax=" in text
        assert "RestrictAddressFamilies=" in text
    for name in ("pacdp-site", "pacdp-coordinator"):
        assert "PrivateNetwork=yes" in units[name]
    for name in ("pacdp-clientapp", "pacdp-serverapp"):
        assert "IPAddressDeny=any" in units[name]
        assert "node.key" not in units[name]
    assert len(list((folder / "containers").iterdir())) == 5


def test_some_clients_are_a_population_of_their_own(tmp_path):
    folder = tmp_path / "f"
    init(folder, "--sites", "hungary, cleveland", "--set", "privacy.epsilon=[1.0, 2.0, 3.0, 4.0]")
    plan = Plan.load(folder / "plan.json")
    assert [(c.name, c.budget, c.records) for c in plan.clients] == [
        ("cleveland", 1.0, 200),
        ("hungary", 2.0, 173),
    ]
    assert sorted(path.name for path in (folder / "sites").iterdir()) == ["cleveland", "hungary"]


def test_an_experiment_may_say_exact(tmp_path):
    init(tmp_path / "f", "--sites", "hungary", "--set", "training.upload=exact")
    assert Plan.load(tmp_path / "f" / "plan.json").training.upload == "exact"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sites", "hungry"), "is not a client; did you mean hungary"),
        (("--sites", "hungary,hungary"), "must be at least one name, each only once"),
        (("--minimum", 5), "--minimum = 5: is out of range, must be from 1 to 4"),
        (("--port", 80), "--port = 80: is out of range, must be from 1024 to 65531"),
        (("--deadline", 0), "--deadline = 0: is out of range, must be in (0, 1e9)"),
        (("--interval", -1), "--interval = -1: is out of range"),
        (("--host", "a b"), "must be the name or address"),
        (("--method", "fedavg"), "has no privacy guarantee"),
        (("--rounds", 0), "training.rounds"),
        (("--seed", -1), "seed = -1"),
    ],
)
def test_refusals_write_nothing(tmp_path, options, message):
    assert message in refused("federation", "init", tmp_path / "f", *HEART, *options)
    assert list(tmp_path.iterdir()) == []


def test_existing_and_too_long_folders_are_refused(folder, tmp_path):
    assert "exists already" in refused("federation", "init", folder, *HEART)
    long = tmp_path / ("x" * 100)
    message = refused("federation", "init", long, *HEART)
    assert "bytes too long for the sockets" in message
    assert not long.exists()
    assert "its folder does not exist" in refused("federation", "init", tmp_path / "a/b", *HEART)
    for command in ("up", "down", "status", "verify"):
        assert "is not the folder of a federation" in refused("federation", command, tmp_path)
