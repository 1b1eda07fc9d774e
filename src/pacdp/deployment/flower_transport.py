"""Flower's programs on one machine: started, and their run submitted until the coordinator ends."""

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

# Seconds until SuperLink listens, for one of Flower's commands, and between two looks at the runs.
_START, _PATIENCE, _PAUSE = 120.0, 120.0, 20.0
# SuperLink refuses a node that was killed for 45 seconds; until then it is started again and again.
_NODE_PAUSE = 5.0


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
        self._look_at = 0.0
        for port in range(settings.port, settings.port + 1 + len(settings.sites)):
            _require_free_port(port)

    def start(self) -> None:
        """Start everything, register the nodes that are not registered yet, and submit the run."""
        self._supervisor.start([_role("superlink", self._superlink())])
        if not self._supervisor.wait(self._is_listening, seconds=_START):
            if self._supervisor.stopped:
                return
            raise ProcessFailedError(
                f"superlink: does not listen at {self._address}; see {self._folder.logs}"
            )
        self._register()
        nodes = [
            _role(f"supernode {name}", self._supernode(number), pause=_NODE_PAUSE)
            for number, name in enumerate(self._settings.sites)
        ]
        self._supervisor.start([_role("superexec", self._superexec()), *nodes])
        self._submit()

    def look_after(self) -> None:
        """Submit the run again if Flower has given it up, which it does if the ServerApp dies."""
        if self._listing is None:
            if time.monotonic() >= self._look_at:
                command = commands.list_command(self._environment, home=self._home)
                self._listing = _open(command, stdout=subprocess.PIPE)
            return
        if self._listing.poll() is None:
            return
        output, _ = self._listing.communicate()
        self._listing, self._look_at = None, time.monotonic() + _PAUSE
        if _all_finished(output):
            self._submit()

    def _superlink(self) -> Command:
        own = self._folder.flower / "superlink"
        return commands.superlink_command(
            self._environment,
            home=own / "home",
            authority=self._folder.authority,
            certificate=own / "server.crt",
            key=own / "server.key",
            database=own / "state.db",
            secret=own / "superexec.secret",
            port=self._settings.port,
        )

    def _superexec(self) -> Command:
        own = self._folder.flower / "superlink"
        return commands.server_superexec_command(
            self._environment,
            home=own / "home-superexec",
            authority=self._folder.authority,
            secret=own / "superexec.secret",
            address=self._address,
        )

    def _supernode(self, number: int) -> Command:
        name = self._settings.sites[number]
        own = self._folder.node(name)
        return commands.supernode_command(
            self._environment,
            home=own / "home",
            authority=own / "ca.crt",
            key=own / "node.key",
            address=self._address,
            site=name,
            socket=self._folder.site_socket(name),
            port=self._settings.port + 1 + number,
        )

    def _register(self) -> None:
        """Register the keys of the nodes, all at the same time; SuperLink remembers them."""
        marks = {name: self._folder.node(name) / "registered" for name in self._settings.sites}
        running = {
            name: _open(
                commands.register_command(
                    self._environment,
                    home=self._home,
                    public_key=self._folder.node(name) / "node.key.pub",
                    site=name,
                ),
                stdout=subprocess.PIPE,
            )
            for name, mark in marks.items()
            if not mark.exists()
        }
        for name, process in running.items():
            failure = find_failure(_finish(process))
            # Registered before, and stopped before that was noted.
            if failure is not None and "already in use" not in failure:
                raise ProcessFailedError(f"supernode {name}: cannot be registered: {failure}")
            marks[name].touch()

    def _submit(self) -> None:
        command = commands.run_command(
            self._environment,
            home=self._home,
            app=self._folder.flower / "app",
            coordinator=self._folder.coordinator_socket,
        )
        process = _open(command, stdout=subprocess.PIPE)
        failure = find_failure(_finish(process))
        self._look_at = time.monotonic() + _PAUSE
        # SuperLink may have been killed a moment ago; the next look submits it again.
        if failure is not None and "unavailable" not in failure and self._is_listening():
            raise ProcessFailedError(f"superlink: refuses the run: {failure}")

    def _is_listening(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._settings.port), 1.0):
                return True
        except OSError:
            return False


def _role(name: str, command: Command, *, pause: float = 1.0) -> Role:
    folder = Path(command.variables["FLWR_HOME"]).parent
    return Role(name, command.arguments, command.variables, pause=pause, folder=folder)


def _open(command: Command, *, stdout: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command.arguments,
        env=os.environ | dict(command.variables),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
    )


def _finish(process: "subprocess.Popen[bytes]") -> bytes:
    try:
        return process.communicate(timeout=_PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProcessFailedError("superlink: does not answer") from None


def _all_finished(output: bytes) -> bool:
    """Whether SuperLink knows of no run that goes on; False if it did not say."""
    try:
        runs = json.loads(output)["runs"]
        return all(str(run["status"]).startswith("finished") for run in runs)
    except (ValueError, KeyError, TypeError):
        return False


def find_failure(output: bytes) -> str | None:
    """Return why one of Flower's commands has failed, from what it printed; None if it succeeded.

    Asked for JSON, Flower's commands end with code 0 even if they have failed.

    >>> find_failure(b'{"success": true, "node-id": 7}')
    >>> find_failure(b'{"success": false, "error-message": "Public key\\nin use."}')
    'Public key in use.'
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
        # As the programs do; connections that were closed a moment ago are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"127.0.0.1:{port}: the port cannot be used ({error.strerror}); end the program "
                "that uses it, or make a federation with another --port"
            ) from None
