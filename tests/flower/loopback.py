"""Flower's programs on the loopback interface, and stand-ins for coordinator and sites."""

import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from pacdp import sockets
from pacdp.flower import bundle, certificates, commands
from pacdp.flower.app.pacdp_relay.relay import pack, unpack


class SocketServer:
    """Answers every message at a Unix socket, in a thread."""

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self._answer = path, answer

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                message = sockets.receive(connection, sockets.receive_length(connection))
                sockets.send_message(connection, self._answer(message))


class Coordinator:
    """A coordinator that only counts: so many rounds, each open until all sites have answered."""

    def __init__(self, path: Path, sites: list[str], rounds: int, size: int = 1000) -> None:
        self.sites, self.rounds = sites, rounds
        self.answers: list[dict[str, bytes]] = [{}]
        self.opened: list[float] = [time.monotonic()]
        self.ended = threading.Event()
        self._size = size
        self.server = SocketServer(path, self._answer)

    def broadcast(self, number: int) -> bytes:
        return f"broadcast {number} ".encode().ljust(self._size, b".")

    def accept(self, site: str, answer: bytes) -> bool:
        """Whether an answer is a valid one."""
        return True

    def _answer(self, message: bytes) -> bytes:
        header, answer = unpack(message)
        number, site = len(self.answers), str(header["site"])
        fresh = header["round"] == number and site in self.sites
        if fresh and self.accept(site, answer):
            self.answers[-1][site] = answer
        if len(self.answers[-1]) == len(self.sites):
            self.opened.append(time.monotonic())
            if number == self.rounds:
                self.ended.set()
                return pack({"state": "ended"})
            self.answers.append({})
            number += 1
        wanted = [site for site in self.sites if site not in self.answers[-1]]
        reply = {"state": "open", "round": number, "sites": wanted, "seconds": 60.0}
        return pack(reply, b"" if header["round"] == number else self.broadcast(number))

    def durations(self) -> list[float]:
        """Return the seconds of each round."""
        times = zip(self.opened[:-1], self.opened[1:], strict=True)
        return [end - begin for begin, end in times]


class Flower:
    """A SuperLink with TLS and node authentication, its SuperExec, and SuperNodes."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.authority, self.authority_key = folder / "ca.crt", folder / "ca.key"
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        self.home, self.secret = folder / "home", folder / "secret"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def create_files(self) -> None:
        certificates.create_authority(self.authority, self.authority_key)
        certificates.issue_server_certificate(
            self.certificate, self.key, authority=self.authority, authority_key=self.authority_key
        )
        certificates.create_secret(self.secret)
        commands.write_home(self.home, authority=self.authority, address=self.address)
        bundle.write_app(self.folder / "app")

    def start_superlink(self) -> None:
        command = commands.superlink_command(
            self.environment,
            home=self.home,
            authority=self.authority,
            certificate=self.certificate,
            key=self.key,
            database=self.folder / "state.db",
            secret=self.secret,
            port=self.port,
        )
        self.start("superlink", command)
        context = ssl.create_default_context(cafile=self.authority)

        def connect() -> bool:
            with ExitStack() as stack:
                try:
                    raw = socket.create_connection(("127.0.0.1", self.port), 5)
                    stack.enter_context(raw)
                    stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
                except ssl.SSLCertVerificationError:
                    return True
                except OSError:
                    return False
            return True

        wait_until(connect, 60)

    def start_simulation(self) -> None:
        """Start a SuperLink that simulates its nodes instead."""
        self.home.mkdir()
        connection = f'[superlink.federation]\naddress = "{self.address}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(connection)
        like = commands.register_command(
            self.environment, home=self.home, public_key=self.key, site="none"
        )
        program = str(self.environment / "bin" / "flower-superlink")
        arguments = (program, "--insecure", "--simulation", "--port", str(self.port))
        self.start("superlink", commands.Command(arguments, like.variables))
        wait_until(lambda: is_open(self.port), 60)

    def start_superexec(self, name: str = "superexec", secret: Path | None = None) -> None:
        command = commands.server_superexec_command(
            self.environment,
            home=self.home,
            authority=self.authority,
            secret=secret or self.secret,
            address=self.address,
        )
        self.start(name, command)

    def start_supernode(
        self,
        site: str,
        path: Path,
        *,
        authority: Path | None = None,
        address: str | None = None,
        separate: bool = False,
    ) -> None:
        """Start the SuperNode of a site, and if asked for a SuperExec of its own for the app."""
        key, secret, port = self.folder / f"{site}.key", self.folder / f"{site}.secret", free_port()
        if not key.exists():
            certificates.create_node_key(key)
        command = commands.supernode_command(
            self.environment,
            home=self.folder / f"home-{site}",
            authority=authority or self.authority,
            key=key,
            address=address or self.address,
            site=site,
            socket=path,
            port=port,
            secret=secret if separate else None,
        )
        if separate:
            certificates.create_secret(secret)
        self.start(site, command)
        if separate:
            command = commands.client_superexec_command(
                self.environment, home=self.folder / f"home-{site}-app", secret=secret, port=port
            )
            self.start(f"{site}-superexec", command)

    def register(self, *sites: str) -> None:
        """Register the keys of sites, all at the same time."""
        running = []
        for site in sites:
            public = certificates.create_node_key(self.folder / f"{site}.key")
            command = commands.register_command(
                self.environment, home=self.home, public_key=public, site=site
            )
            running.append(self._popen(f"register-{site}", command))
        for process in running:
            assert process.wait(60) == 0, self.log(f"register-{sites[0]}")

    def start_run(self, coordinator: Path, app: Path | None = None) -> None:
        command = commands.run_command(
            self.environment,
            home=self.home,
            app=app or self.folder / "app",
            coordinator=coordinator,
        )
        assert self._popen("run", command).wait(60) == 0, self.log("run")

    def start(self, name: str, command: commands.Command) -> None:
        self.processes[name] = self._popen(name, command)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a process, and what it has started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _popen(self, name: str, command: commands.Command) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command.arguments,
                env=_merge(os.environ, command.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _merge(base: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    return {**base, **variables}


def is_open(port: int) -> bool:
    """Whether a process listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Wait until something is true; fail if that takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.1)
