"""The files for each machine of a federation, generated there so that private keys never leave."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pacdp.deployment.layout import FederationSettings, format_toml, require_site_names
from pacdp.deployment.templates import write_container_files, write_units
from pacdp.errors import DataError, InputError
from pacdp.federation import Plan
from pacdp.federation.verification import verify_plan
from pacdp.flower.bundle import write_app
from pacdp.flower.certificates import (
    create_authority,
    create_node_key,
    create_secret,
    issue_server_certificate,
)
from pacdp.flower.commands import write_home
from pacdp.keys import create_key, make_verifier, read_public_key
from pacdp.plugins import hash_module, import_pinned
from pacdp.site.plans import find_plugin_names
from pacdp.storage import require_new_file

SERVER_UNITS = ("pacdp-coordinator", "pacdp-superlink", "pacdp-serverapp")
SITE_UNITS = ("pacdp-site", "pacdp-supernode", "pacdp-clientapp")
_PEERS_COMMENT = "peers: the ID of the user pacdp-app (id -u pacdp-app)"


def write_folder_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a new folder under a temporary name, and rename it once it is complete."""
    final = require_new_file(path.resolve())
    beside = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        write(beside)
        beside.rename(final)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def make_private_folder(path: Path) -> Path:
    """Create a folder that only its owner can access, and return it."""
    path.mkdir(mode=0o700)
    return path


def write_superlink(folder: Path, authority_key: Path, hosts: Sequence[str]) -> None:
    """Write an authority, the certificate of a SuperLink, and the secret of its SuperExec."""
    make_private_folder(folder)
    create_authority(folder / "ca.crt", authority_key)
    issue_server_certificate(
        folder / "server.crt",
        folder / "server.key",
        authority=folder / "ca.crt",
        authority_key=authority_key,
        hosts=hosts,
    )
    create_secret(folder / "superexec.secret")


def write_node(folder: Path) -> None:
    """Write the key of a SuperNode, and the secret of its SuperExec."""
    make_private_folder(folder)
    create_node_key(folder / "node.key")
    create_secret(folder / "superexec.secret")


def list_modules(plan: Path) -> dict[str, str]:
    """Return the modules that a plan uses, and their parent packages, with their hashes."""
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DataError(f"{plan}: is not a plan") from None
    modules = {}
    for name in find_plugin_names(content):
        parts = name.partition(":")[0].split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            modules[module] = hash_module(module)
    return modules


def create_server(
    path: Path,
    *,
    plan: Path,
    key: Path,
    sites: Mapping[str, str],
    host: str,
    port: int,
    minimum: int | None = None,
    deadline: float = 300.0,
) -> None:
    """Write the files for the server's machine; ``sites`` are the public keys of the clients."""
    modules = list_modules(plan)
    import_pinned(modules)
    planned = Plan.load(plan)
    verify_plan(planned)
    names = [client.name for client in planned.clients]
    if set(names) != set(sites):
        differing = sorted(set(names) ^ set(sites))[0]
        raise InputError(f"--site {differing}: each client of the plan needs exactly one key")
    for name, public in sites.items():
        make_verifier([public], where=f"--site {name}")
    if len(set(sites.values())) < len(sites):
        raise InputError("--site: two clients have the same public key, must be different")
    settings = make_settings(
        names, run=planned.run, host=host, port=port, minimum=minimum, deadline=deadline
    )
    read_public_key(key)

    def write(folder: Path) -> None:
        write_superlink(folder / "superlink", folder / "ca.key", [host])
        coordinator = make_private_folder(folder / "coordinator")
        shutil.copyfile(plan, coordinator / "plan.json")
        shutil.copyfile(key, coordinator / "coordinator.key")
        (coordinator / "coordinator.key").chmod(0o600)
        values = {
            "plan": "plan.json",
            "key": "coordinator.key",
            "log": "run.db",
            "socket": "/run/pacdp-coordinator/coordinator.sock",
            "results": "results",
            "minimum": settings.minimum,
            "deadline": deadline,
            "peers": [],
            "modules": modules,
            "sites": {name: sites[name] for name in names},
        }
        text = format_toml(values, comments=[_PEERS_COMMENT])
        (coordinator / "coordinator.toml").write_text(text, encoding="utf-8")
        write_app(folder / "app")
        authority = Path("/etc/pacdp-superlink/ca.crt")
        write_home(folder / "flwr", authority=authority, address=f"127.0.0.1:{port}")
        write_units(folder / "systemd", settings, units=SERVER_UNITS)
        write_container_files(folder / "containers", settings)

    write_folder_atomically(path, write)


def create_node(path: Path, *, site: str, server: str, coordinator: str) -> str:
    """Write the files for a site's machine, and return the site's public key."""
    require_site_names([site])
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--server = {server!r}: must be HOST:PORT")
    make_verifier([coordinator], where="--coordinator")
    settings = make_settings([site], run="", host=host, port=int(port))
    public = []

    def write(folder: Path) -> None:
        site_folder = make_private_folder(folder / "site")
        public.append(create_key(site_folder / "site.key"))
        values = {
            "client": site,
            "data": "records.csv",
            "ledger": "site.ledger",
            "plan": "plan.json",
            "coordinator": coordinator,
            "key": "site.key",
            "socket": "/run/pacdp-site/site.sock",
            "head": "/srv/pacdp-head/site.head",
            "peers": [],
        }
        text = format_toml(values, comments=[_PEERS_COMMENT])
        (site_folder / "site.toml").write_text(text, encoding="utf-8")
        write_node(folder / "node")
        write_units(folder / "systemd", settings, units=SITE_UNITS)
        (folder / "systemd" / f"{site}.env").rename(folder / "node" / "node.env")
        write_container_files(folder / "containers", settings)

    write_folder_atomically(path, write)
    return public[0]


def make_settings(
    sites: Sequence[str],
    *,
    run: str,
    host: str,
    port: int,
    experiment: str = "",
    seed: int = 0,
    minimum: int | None = None,
    deadline: float = 300.0,
) -> FederationSettings:
    """Return the settings of a federation; raise InputError if any is out of range."""
    needed = max(1, len(sites) // 2) if minimum is None else minimum
    # SuperLink uses this port; in a trial, SuperNodes use the following ones.
    last_port = 65535 - len(sites)
    for name, value, valid, allowed in (
        ("--minimum", needed, 1 <= needed <= len(sites), f"from 1 to {len(sites)}, the sites"),
        ("--deadline", deadline, 0 < deadline < 1e9, "in (0, 1e9), in seconds"),
        ("--port", port, 1024 <= port <= last_port, f"from 1024 to {last_port}"),
    ):
        if not valid:
            raise InputError(f"{name} = {value:g}: is out of range, must be {allowed}")
    if not host or not all(part.isalnum() or part in ".-" for part in host):
        raise InputError(f"--host = {host!r}: must be the name or address of a machine")
    return FederationSettings(
        experiment=experiment,
        run=run,
        sites=tuple(sites),
        seed=seed,
        host=host,
        port=port,
        deadline=deadline,
        minimum=needed,
    )
