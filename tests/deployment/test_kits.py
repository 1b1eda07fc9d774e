"""What each machine of a real federation gets, and what it is refused."""

import stat

import pytest

from pacdp.coordinator import Coordinator, CoordinatorSettings
from pacdp.keys import read_public_key
from pacdp.site import SiteSettings
from tests.cli.command import refused, run
from tests.site.trial import heart_plan

KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
CLIENTS = ("cleveland", "hungary", "switzerland", "long-beach")


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """A plan, the coordinator's key, and the kit of each site."""
    folder = tmp_path_factory.mktemp("kits")
    heart_plan().save(folder / "plan.json")
    public = run("site", "key", folder / "coordinator.key").stdout.strip()
    for name in CLIENTS:
        address = ("--server", "server.example:9092", "--coordinator", public)
        run("federation", "node", folder / name, "--site", name, *address)
    return folder


def server(folder, *options, call=run, plan="plan.json", leave_out=(), host="server.example"):
    keys = {n: read_public_key(folder / n / "site/site.key") for n in CLIENTS if n not in leave_out}
    sites = [part for name, key in keys.items() for part in ("--site", f"{name}={key}")]
    given = ("--plan", folder / plan, "--key", folder / "coordinator.key", "--host", host)
    return call("federation", "server", folder / "server", *given, *sites, *options)


def test_kits_fit_together(exchanged):
    server(exchanged, "--minimum", 3)
    made = exchanged / "server"
    settings = CoordinatorSettings.load_toml(made / "coordinator" / "coordinator.toml")
    assert str(settings.socket) == "/run/pacdp-coordinator/coordinator.sock"
    assert settings.minimum == 3
    assert list(settings.sites) == list(CLIENTS)
    Coordinator(settings)
    site = SiteSettings.load_toml(exchanged / "hungary" / "site" / "site.toml")
    assert site.coordinator == (read_public_key(settings.key),)
    assert settings.sites["hungary"] == (read_public_key(site.key),)
    assert site.accepted is None
    variables = (exchanged / "hungary/node/node.env").read_text()
    assert variables == 'PACDP_SITE="hungary"\nPACDP_SUPERLINK=server.example:9092\n'
    names = {path.name for path in (made / "systemd").glob("*.service")}
    assert names == {
        "pacdp-coordinator.service",
        "pacdp-superlink.service",
        "pacdp-serverapp.service",
    }
    assert "--host 0.0.0.0 --port 9092" in (made / "systemd/pacdp-superlink.service").read_text()
    names = {path.name for path in (exchanged / "hungary/systemd").glob("*.service")}
    assert names == {"pacdp-site.service", "pacdp-supernode.service", "pacdp-clientapp.service"}
    for path in (*exchanged.rglob("*.key"), *exchanged.rglob("*.secret")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"leave_out": ("hungary",)}, (), "--site hungary: each client of the plan needs exactly"),
        ({}, ("--site", f"nobody={KEY}"), "--site nobody: each client of the plan needs exactly"),
        ({}, ("--site", f"hungary={KEY}"), "--site: two have the same name"),
        ({"leave_out": ("hungary",)}, ("--site", "hungary=00"), "must be a public key of 64"),
        ({"host": "a/b"}, (), "--host = 'a/b': must be the name or address"),
        ({"plan": "coordinator.key"}, (), "is not a plan"),
        ({}, ("--minimum", 5), "--minimum = 5: is out of range"),
        ({"leave_out": ("hungary",)}, ("--site", "hungary"), "--site hungary: must be NAME=KEY"),
        (
            {"leave_out": ("hungary", "cleveland")},
            ("--site", f"hungary={KEY}", "--site", f"cleveland={KEY}"),
            "two clients have the same public key",
        ),
    ],
)
def test_refused_servers_write_nothing(exchanged, settings, options, message):
    before = sorted(exchanged.iterdir())
    if (exchanged / "server").exists():
        (exchanged / "server").rename(exchanged / "kept")
        before = sorted(exchanged.iterdir())
    assert message in server(exchanged, *options, call=refused, **settings)
    assert sorted(exchanged.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--site": "../hungary"}, "cannot be the name of a folder"),
        ({"--server": "server.example"}, "must be HOST:PORT"),
        ({"--coordinator": "00"}, "--coordinator: must be a public key of 64"),
    ],
)
def test_refused_nodes_write_nothing(tmp_path, changes, message):
    given = {"--site": "hungary", "--server": "server.example:9092", "--coordinator": KEY}
    options = [part for pair in (given | changes).items() for part in pair]
    assert message in refused("federation", "node", tmp_path / "n", *options)
    assert list(tmp_path.iterdir()) == []
