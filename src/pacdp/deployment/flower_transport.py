"""Flower's programs on one machine, and its run, which is resubmitted while it is needed."""

import json
import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from pacdp.deployment.layout import FederationFolder, FederationSettings
from pacdp.deployment.roles import Role
from pacdp.deployment.supervisor import ProcessFailedError, Supervisor
from pacdp.errors import InputError
from pacdp.flower import commands
from pacdp.flower.commands import Command
from pacdp.flower.environment import ensure_environment

# For SuperLink to listen, for one of Flower's commands, and between checks of Flower's run.
_STARTUP_SECONDS, _COMMAND_TIMEOUT_SECONDS, _CHECK_SECONDS = 120.0, 120.0, 20.0
# SuperLink rejects a node for 45 seconds after it was killed; it is restarted until it succeeds.
_NODE_RESTART_SECONDS = 5.0


class FlowerTransport:
    """SuperLink, SuperExec and a SuperNode for each site, all on the loopback interface."""

    def __init__(
        self, folder: FederationFolder, settings: FederationSettings, supervisor: Supervisor
    ) -> None:
        self._folder, self._settings, self._supervisor = folder, settings, supervisor
        self._environment = ensure_environment()
        self._home = folder.flower / "home"
        self._address = f"127.0.0.1:{settings.port}"
        self._listing: subprocess.Popen[bytes] | None = None
        self._next_check = 0.0
        for port in range(settings.port, settings.port + 1 + len(settings.sites)):
            _require_free_port(port)

    def start(self) -> None:
        """Start all programs, register new nodes, and submit the run."""
        self._supervisor.start([_make_role("superlink", self._superlink())])
        if not self._supervisor.wait(self._is_listening, seconds=_STARTUP_SECONDS):
            if self._supervisor.stopped:
                return
            raise ProcessFailedError(
                f"superlink: is not listening on {self._address}; see {self._folder.logs}"
            )
        self._register()
        nodes = [
            _make_role(f"supernode {name}", self._supernode(number), pause=_NODE_RESTART_SECONDS)
            for number, name in enumerate(self._settings.sites)
        ]
        self._supervisor.start([_make_role("superexec", self._superexec()), *nodes])
        self._submit()

    def maintain(self) -> None:
        """Resubmit the run if Flower has abandoned it, as it does when the ServerApp dies."""
        if self._listing is None:
            if time.monotonic() >= self._next_check:
                command = commands.list_command(self._environment, home=self._home)
                self._listing = _start_process(command)
            return
        if self._listing.poll() is None:
            return
        output, _ = self._listing.communicate()
        self._listing, self._next_check = None, time.monotonic() + _CHECK_SECONDS
        if _have_all_finished(output):
            self._submit()

    def _superlink(self) -> Command:
        folder = self._folder.flower / "superlink"
        return commands.superlink_command(
            self._environment,
            home=folder / "home",
            authority=self._folder.authority,
            certificate=folder / "server.crt",
            key=folder / "server.key",
            database=folder / "state.db",
            secret=folder / "superexec.secret",
            port=self._settings.port,
        )

    def _superexec(self) -> Command:
        folder = self._folder.flower / "superlink"
        return commands.server_superexec_command(
            self._environment,
            home=folder / "home-superexec",
            authority=self._folder.authority,
            secret=folder / "superexec.secret",
            address=self._address,
        )

    def _supernode(self, number: int) -> Command:
        name = self._settings.sites[number]
        folder = self._folder.node(name)
        return commands.supernode_command(
            self._environment,
            home=folder / "home",
            authority=folder / "ca.crt",
            key=folder / "node.key",
            address=self._address,
            site=name,
            socket=self._folder.site_socket(name),
            port=self._settings.port + 1 + number,
        )

    def _register(self) -> None:
        """Register the keys of new nodes in parallel; SuperLink stores them."""
        markers = {name: self._folder.node(name) / "registered" for name in self._settings.sites}
        running = {
            name: _start_process(
                commands.register_command(
                    self._environment,
                    home=self._home,
                    public_key=self._folder.node(name) / "node.key.pub",
                    site=name,
                )
            )
            for name, marker in markers.items()
            if not marker.exists()
        }
        for name, process in running.items():
            failure = find_failure(_wait_for_output(process))
            # An earlier start may have been stopped between registering and marking it.
            if failure is not None and "already in use" not in failure:
                raise ProcessFailedError(f"supernode {name}: cannot be registered: {failure}")
            markers[name].touch()

    def _submit(self) -> None:
        command = commands.run_command(
            self._environment,
            home=self._home,
            app=self._folder.flower / "app",
            coordinator=self._folder.coordinator_socket,
        )
        failure = find_failure(_wait_for_output(_start_process(command)))
        self._next_check = time.monotonic() + _CHECK_SECONDS
        # If SuperLink was killed just now, the next check submits the run again.
        if failure is not None and "unavailable" not in failure and self._is_listening():
            raise ProcessFailedError(f"superlink: rejected the run: {failure}")

    def _is_listening(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._settings.port), 1.0):
                return True
        except OSError:
            return False


def _make_role(name: str, command: Command, *, pause: float = 1.0) -> Role:
    folder = Path(command.variables["FLWR_HOME"]).parent
    return Role(name, command.arguments, command.variables, pause=pause, folder=folder)


def _start_process(command: Command) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command.arguments,
        env=os.environ | dict(command.variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _wait_for_output(process: "subprocess.Popen[bytes]") -> bytes:
    try:
        return process.communicate(timeout=_COMMAND_TIMEOUT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProcessFailedError("superlink: does not respond") from None


def _have_all_finished(output: bytes) -> bool:
    """Whether SuperLink lists no active run; False if its output cannot be read."""
    try:
        runs = json.loads(output)["runs"]
        return all(str(run["status"]).startswith("finished") for run in runs)
    except (ValueError, KeyError, TypeError):
        return False


def find_failure(output: bytes) -> str | None:
    """Return why one of Flower's commands failed, from its JSON output; None if it succeeded.

    With JSON output, Flower's commands exit with code 0 even if they fail.

    >>> find_failure(b'{"success": true, "node-id": 7}')
    >>> find_failure(b'{"success": false, "error-message": "Public key already in use."}')
    'Public key already in use.'
    """
    reason = output.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        answer = json.loads(output)
        if answer["success"] is True:
            return None
        reason = str(answer["error-message"])
    return " ".join(reason.split())[-300:]


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        # As Flower does, so that recently closed connections are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"127.0.0.1:{port}: the port is not available ({error.strerror}); stop the program "
                "that uses it, or create a federation with another --port"
            ) from None
