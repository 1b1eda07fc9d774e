"""Processes identified by PID and start time, so that no unrelated process is ever terminated.

PIDs are reused, at the latest after a reboot. A process is the recorded one only if it also started
at the recorded clock tick of the recorded boot.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from pacdp.config import Settings, Whole
from pacdp.storage import write_atomically


class ProcessIdentity(Settings):
    """The identity of a process, which may have ended since.

    >>> own = ProcessIdentity.of(os.getpid())
    >>> own.is_alive(), own.model_copy(update={"started": "0"}).is_alive()
    (True, False)
    """

    pid: Whole
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """Return the identity of a process that exists."""
        return cls(pid=pid, started=_read_start(pid))

    def is_alive(self) -> bool:
        """Whether this process is still running."""
        return self.started != "" and _read_start(self.pid) == self.started

    def send_signal(self, number: int) -> None:
        """Signal the process if it is still running, or its group if it leads a session."""
        try:
            # While this descriptor is open, the PID cannot be reused.
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.is_alive():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getsid(self.pid) == self.pid:
                        os.killpg(self.pid, number)
                    else:
                        signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


class ProcessTable(Settings):
    """``processes.json``: the supervisor of a federation, and the processes that it started."""

    supervisor: ProcessIdentity | None = None
    processes: dict[str, ProcessIdentity] = Field({})

    @classmethod
    def load(cls, path: Path) -> "ProcessTable":
        """Read the file; return an empty table if it is missing or damaged."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, UnicodeDecodeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write the file."""
        write_atomically(path, self.model_dump_json(indent=2) + "\n")

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor is running."""
        return self.supervisor is not None and self.supervisor.is_alive()


def terminate_processes(processes: Iterable[ProcessIdentity], *, patience: float = 15.0) -> None:
    """Send SIGTERM, and then SIGKILL to processes that are still running after a while."""
    known = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in known:
            process.send_signal(number)
        deadline = time.monotonic() + patience
        while any(process.is_alive() for process in known) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not any(process.is_alive() for process in known):
            return


def _read_start(pid: int) -> str:
    """Return when a process started, as boot and clock tick; empty if it is not running."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The program's name is in parentheses and may contain any characters.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"
