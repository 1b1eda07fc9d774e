"""The supervisor of a federation on one machine, which restarts processes that exit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pacdp.deployment.layout import FederationFolder
from pacdp.deployment.processes import ProcessIdentity, ProcessTable, terminate_processes
from pacdp.deployment.roles import Role
from pacdp.errors import InputError, PacdpError

_LONGEST_LINE = 300


class ProcessFailedError(PacdpError):
    """A process cannot be started or did not finish in time."""


@dataclass
class _Running:
    role: Role
    process: "subprocess.Popen[bytes] | None" = None
    start_at: float = 0.0


class Supervisor:
    """Runs the processes of a federation until it is told to stop. Use it as a context manager.

    Each process leads a separate process group, so that its children are terminated with it.
    SIGTERM and SIGINT set ``stopped``.
    """

    def __init__(self, folder: FederationFolder) -> None:
        self.folder, self.stopped = folder, False
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> "Supervisor":
        table = ProcessTable.load(self.folder.processes)
        if table.is_supervised:
            raise InputError(
                f"{self.folder.path}: is already running; pacdp federation down stops it"
            )
        # Left behind by a supervisor that was killed.
        terminate_processes(table.processes.values())
        self._own = ProcessIdentity.of(os.getpid())
        self._save()
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._terminate_all()
        self.folder.processes.unlink(missing_ok=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True

    def start(self, roles: Iterable[Role]) -> None:
        """Start processes."""
        for role in roles:
            self._running[role.name] = _Running(role)
            self._launch(self._running[role.name])
        self._save()

    def check(self) -> int | None:
        """Restart processes that have exited; return the coordinator's exit code if it is final.

        Raises ProcessFailedError if a process refused its settings.
        """
        for running in self._running.values():
            if running.process is None:
                if time.monotonic() >= running.start_at:
                    self._launch(running)
                    self._save()
                continue
            code = _exit_code(running.process)
            if code is None:
                continue
            running.process = None
            running.start_at = time.monotonic() + running.role.pause
            self._save()
            if running.role.name == "coordinator" and code in (0, 1):
                return code
            if code in running.role.fatal:
                raise ProcessFailedError(
                    f"{running.role.name}: {self._read_last_line(running.role)}"
                )
        return None

    def wait(self, done: Callable[[], bool], *, seconds: float) -> bool:
        """Supervise the processes until ``done`` returns true; return False after a timeout."""
        deadline = time.monotonic() + seconds
        while not self.stopped and time.monotonic() < deadline:
            if done():
                return True
            self.check()
            time.sleep(0.1)
        return False

    def _launch(self, running: _Running) -> None:
        role = running.role
        with self._log_file(role).open("ab") as log:
            running.process = subprocess.Popen(
                role.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(role.variables),
                cwd=role.folder,
                start_new_session=True,
            )

    def _save(self) -> None:
        processes = {
            name: ProcessIdentity.of(running.process.pid)
            for name, running in self._running.items()
            if running.process is not None
        }
        ProcessTable(supervisor=self._own, processes=processes).save(self.folder.processes)

    def _terminate_all(self) -> None:
        """Terminate all processes, in reverse order of their start."""
        known = [r.process for r in reversed(self._running.values()) if r.process is not None]
        for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + patience
            for process in known:
                _signal_group(process, number)
            while any(_exit_code(p) is None for p in known) and time.monotonic() < deadline:
                time.sleep(0.05)
            known = [process for process in known if process.returncode is None]

    def _log_file(self, role: Role) -> Path:
        return self.folder.logs / f"{role.name.replace(' ', '-')}.log"

    def _read_last_line(self, role: Role) -> str:
        """Return the last line of a process's log, which says why it exited."""
        with suppress(OSError):
            text = self._log_file(role).read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1].removeprefix("pacdp: ")[:_LONGEST_LINE]
        return "exited without a message"


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code of a process that has exited, after killing the rest of its group."""
    if process.returncode is None:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        # The PID cannot be reused until the process is waited for.
        _signal_group(process, signal.SIGKILL)
        process.wait()
    return process.returncode


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def stop_federation(folder: FederationFolder) -> Sequence[str]:
    """Stop the processes of a federation, and return the names of those that were running."""
    table = ProcessTable.load(folder.processes)
    alive = [name for name, process in table.processes.items() if process.is_alive()]
    if table.supervisor is not None:
        # It terminates the others in the right order.
        terminate_processes([table.supervisor], patience=40.0)
    terminate_processes(table.processes.values())
    folder.processes.unlink(missing_ok=True)
    return alive
