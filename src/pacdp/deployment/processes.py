"""Processes by their number and the time at which they started, so that no foreign one is ended.

Numbers of processes are used again, after a restart of the machine at the latest. A process is the
one that was recorded only if it has also started at the recorded tick of the recorded boot.
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
    """A process that may have ended since.

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
        """Whether this very process still runs."""
        return self.started != "" and _read_start(self.pid) == self.started

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it still runs; to its group if it leads a session."""
        try:
            # While this is open, the number belongs to the process.
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
    """``processes.json``: the supervisor of a federation, and what it has started."""

    supervisor: ProcessIdentity | None = None
    processes: dict[str, ProcessIdentity] = Field({})

    @classmethod
    def load(cls, path: Path) -> "ProcessTable":
        """Read the file; one that is missing or damaged names no process."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError, UnicodeDecodeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write the file."""
        write_atomically(path, self.model_dump_json(indent=2) + "\n")

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor runs."""
        return self.supervisor is not None and self.supervisor.is_alive()


def terminate_processes(processes: Iterable[ProcessIdentity], *, patience: float = 15.0) -> None:
    """End processes: ask them first, and kill those that are still there after a while."""
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
    """Return when a process started, as boot and clock tick; empty if it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name of the program is in brackets and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"
