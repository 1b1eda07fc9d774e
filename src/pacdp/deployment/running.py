"""Running a federation on one machine until its run has ended."""

import subprocess
import sys
import time
from collections.abc import Callable

from pacdp.coordinator import CoordinatorSettings, RunLog
from pacdp.deployment.flower_transport import FlowerTransport
from pacdp.deployment.layout import FederationFolder
from pacdp.deployment.processes import ProcessIdentity, ProcessTable
from pacdp.deployment.roles import DirectTransport, list_pacdp_roles
from pacdp.deployment.supervisor import ProcessFailedError, Supervisor
from pacdp.errors import InputError
from pacdp.federation import Plan, RoundResult
from pacdp.federation.wire import plan_digest
from pacdp.plugins import import_pinned
from pacdp.validation import require_member, require_positive_number

TRANSPORTS = ("flower", "direct")
ENDED, FAILED, STOPPED = 0, 1, 130
"""Exit codes: the run has ended, it has failed, or it was stopped and can be resumed."""
# Between checks of the processes and the log, and for a supervisor to start.
_POLL_SECONDS, _STARTUP_SECONDS = 0.25, 60.0


def run_federation(
    folder: FederationFolder,
    *,
    transport: str = "flower",
    timeout: float | None = None,
    report: Callable[[str], None],
) -> int:
    """Start and supervise all processes until the run has ended, and return the exit code.

    ``report`` is called with a line of text for each round. A run that was stopped is resumed.
    """
    _require_options(transport, timeout)
    settings = folder.load_settings()
    watcher = RunWatcher(folder)
    if watcher.has_ended:
        return ENDED
    deadline = None if timeout is None else time.monotonic() + timeout
    with Supervisor(folder) as supervisor:
        transport_class = DirectTransport if transport == "direct" else FlowerTransport
        processes = transport_class(folder, settings, supervisor)
        reported = len(watcher.read_history())
        if reported:
            report(f"resumed after round {reported}")
        supervisor.start(list_pacdp_roles(folder, settings))
        processes.start()
        while True:
            code = supervisor.check()
            for row in watcher.read_history()[reported:]:
                reported += 1
                report(describe_round(row, watcher.plan.rounds))
            if code is not None:
                return code
            if supervisor.stopped:
                return STOPPED
            if deadline is not None and time.monotonic() > deadline:
                raise ProcessFailedError(
                    f"{folder.path}: did not end within {timeout:g} s; start it again to resume"
                )
            processes.maintain()
            time.sleep(_POLL_SECONDS)


def start_detached(
    folder: FederationFolder, *, transport: str = "flower", timeout: float | None = None
) -> ProcessIdentity | None:
    """Start a supervisor in the background, and return once it is running.

    Returns None, and starts nothing, if the run has ended.
    """
    _require_options(transport, timeout)
    folder.load_settings()
    if RunWatcher(folder).has_ended:
        return None
    options = ["--transport", transport]
    if timeout is not None:
        options += ["--timeout", str(timeout)]
    if ProcessTable.load(folder.processes).is_supervised:
        raise InputError(f"{folder.path}: is already running; pacdp federation down stops it")
    with (folder.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pacdp", "federation", "up", str(folder.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _STARTUP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        supervisor = ProcessTable.load(folder.processes).supervisor
        if supervisor is not None and supervisor.pid == process.pid:
            # Keeps Popen from warning that the supervisor outlives this process.
            process.returncode = 0
            return supervisor
        time.sleep(0.05)
    raise ProcessFailedError(f"the supervisor did not start; see {folder.logs / 'supervisor.log'}")


def _require_options(transport: str, timeout: float | None) -> None:
    require_member("--transport", transport, TRANSPORTS)
    if timeout is not None:
        require_positive_number("--timeout", timeout)


class RunWatcher:
    """Follows a run by reading the coordinator's log."""

    def __init__(self, folder: FederationFolder) -> None:
        self.settings = CoordinatorSettings.load_toml(folder.coordinator_settings)
        import_pinned(self.settings.modules)
        self.plan = Plan.load(self.settings.plan)
        self._digest = plan_digest(self.plan, self.settings.modules)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended and its results have been written."""
        return (self.settings.results / "result.json").is_file()

    @property
    def log(self) -> RunLog | None:
        """The log; None before the first start."""
        if not self.settings.log.is_file():
            return None
        return RunLog(self.settings.log, run=self.plan.run, digest=self._digest)

    def read_history(self) -> list[RoundResult]:
        """Return the rounds that are closed and evaluated."""
        log = self.log
        return [] if log is None else log.results()


def describe_round(row: RoundResult, rounds: int) -> str:
    """Return the line that reports a round."""
    metrics = "".join(f", {name} {value:.4g}" for name, value in row.metrics.items())
    return f"round {row.round} of {rounds}: {row.answered} of {row.asked} replied{metrics}"
