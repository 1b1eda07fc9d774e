"""The command lines and environment variables of Flower's programs.

Nothing is started here. Each function returns a :class:`Command`, whose variables are added to the
environment of the process.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pacdp.errors import InputError
from pacdp.storage import write_atomically

_CONNECTION = "federation"


@dataclass(frozen=True)
class Command:
    """The command line of a program, and the environment variables that it needs."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]


def superlink_command(
    environment: Path,
    *,
    home: Path,
    authority: Path,
    certificate: Path,
    key: Path,
    database: Path,
    secret: Path,
    host: str = "127.0.0.1",
    port: int = 9092,
) -> Command:
    """Return the command of the SuperLink, to which all other programs of Flower connect.

    It accepts only TLS and registered SuperNodes, keeps its state in ``database``, starts no app
    itself, and passes the ServerApp only to a SuperExec with the same ``secret``. However, Flower
    does not authenticate operators: anyone who can reach the port can also register nodes and start
    runs, with requests below ``/v1/control/``. Expose only ``/v1/fleet/`` to other machines.
    """
    return _command(
        environment,
        home,
        "flower-superlink",
        *("--ssl-ca-certfile", authority, "--ssl-certfile", certificate, "--ssl-keyfile", key),
        *("--enable-supernode-auth", "--database", database, "--isolation", "process"),
        *("--superexec-auth-secret-file", secret, "--disable-runtime-dependency-installation"),
        *("--host", host, "--port", port),
    )


def server_superexec_command(
    environment: Path, *, home: Path, authority: Path, secret: Path, address: str
) -> Command:
    """Return the command of the SuperExec for the ServerApp; ``address`` is SuperLink's."""
    return _command(
        environment,
        home,
        "flower-superexec",
        *("--runtime-api-address", address, "--root-certificates", authority),
        *("--superexec-auth-secret-file", secret),
        poll=1.0,
    )


def supernode_command(
    environment: Path,
    *,
    home: Path,
    authority: Path,
    key: Path,
    address: str,
    site: str,
    socket: Path,
    port: int = 9094,
    secret: Path | None = None,
) -> Command:
    """Return the command of a site's SuperNode; ``address`` is that of the SuperLink.

    ``port`` is a free port on the loopback interface. With a ``secret`` the SuperNode starts
    no app itself: :func:`client_superexec_command` does, as another user that cannot read ``key``.
    """
    isolation = ["--isolation", "subprocess"]
    if secret is not None:
        isolation = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return _command(
        environment,
        home,
        "flower-supernode",
        *("--superlink", address, "--root-certificates", authority),
        *("--auth-supernode-private-key", key, "--host", "127.0.0.1", "--port", port),
        *("--node-config", _format_settings(site=site, socket=str(socket)), *isolation),
    )


def client_superexec_command(
    environment: Path, *, home: Path, secret: Path, port: int = 9094
) -> Command:
    """Return the command of the SuperExec for the ClientApp; ``port`` is the SuperNode's."""
    return _command(
        environment,
        home,
        "flower-superexec",
        *("--runtime-api-address", f"127.0.0.1:{port}", "--insecure"),
        *("--superexec-auth-secret-file", secret),
    )


def write_home(home: Path, *, authority: Path, address: str) -> None:
    """Write the connection settings for the ``flwr`` commands below."""
    home.mkdir(parents=True, exist_ok=True)
    # JSON strings are valid TOML strings.
    lines = [
        "[superlink]",
        f"default = {json.dumps(_CONNECTION)}",
        "",
        f"[superlink.{_CONNECTION}]",
        f"address = {json.dumps(address)}",
        f"root-certificates = {json.dumps(str(authority.absolute()), ensure_ascii=False)}",
    ]
    write_atomically(home / "config.toml", "\n".join(lines) + "\n")


def register_command(environment: Path, *, home: Path, public_key: Path, site: str) -> Command:
    """Return the command that registers a SuperNode at the SuperLink, once per key."""
    return _command(
        environment,
        home,
        "flwr",
        *("supernode", "register", public_key, _CONNECTION, "--name", site, "--format", "json"),
    )


def run_command(environment: Path, *, home: Path, app: Path, coordinator: Path) -> Command:
    """Return the command that submits the run; ``coordinator`` is the coordinator's socket."""
    return _command(
        environment,
        home,
        "flwr",
        *("run", app, _CONNECTION, "--format", "json"),
        *("--run-config", _format_settings(coordinator=str(coordinator))),
    )


def list_command(environment: Path, *, home: Path) -> Command:
    """Return the command that lists the runs of the SuperLink and their states, as JSON."""
    return _command(environment, home, "flwr", "list", _CONNECTION, "--format", "json")


def _command(
    environment: Path, home: Path, program: str, *arguments: object, poll: float = 0.1
) -> Command:
    programs = environment / "bin"
    return Command(
        (str(programs / program), *map(str, arguments)),
        {
            # Flower's programs start one another by their names.
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            # Modules of pacdp's environment must not be imported in Flower's.
            "PYTHONPATH": "",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            # A ClientApp is started in every round, so its SuperExec polls often.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll),
        },
    )


def _format_settings(**settings: str) -> str:
    """Return settings in Flower's format: key='value', separated by spaces."""
    for key, value in settings.items():
        if "'" in value or not value.isprintable():
            raise InputError(f"{key}: {value!r} must not contain quotes or control characters")
    return " ".join(f"{key}='{value}'" for key, value in settings.items())
