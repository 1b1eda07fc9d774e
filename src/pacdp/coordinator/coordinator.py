"""The coordinator: runs the rounds of a federation whose sites are separate processes.

Its key is its only secret. The sites do not trust it: they enforce their budgets themselves. Its
state is derived from its log, so it can be killed and restarted at any time.
"""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

from pacdp.coordinator.log import RunLog
from pacdp.coordinator.server import LoggedServer, Recorder
from pacdp.coordinator.settings import CoordinatorSettings
from pacdp.coordinator.transport import LoggedTransport, RelayTransport, RunFailedError
from pacdp.errors import DataError, InputError
from pacdp.experiments.results import RunResult
from pacdp.experiments.run_folder import write_result
from pacdp.federation import LocalModel, Plan, Result, RoundResult, run_rounds
from pacdp.federation.client import require_ledger
from pacdp.federation.history import History
from pacdp.federation.local_model import Tensors
from pacdp.federation.record_files import read_records
from pacdp.federation.transports import Transport
from pacdp.federation.verification import verify_plan
from pacdp.federation.wire import Wire
from pacdp.keys import Verify, load_signer, make_verifier
from pacdp.plugins import import_pinned
from pacdp.privacy import Ledger
from pacdp.sockets import Listener
from pacdp.storage import lock_exclusively

OnRound = Callable[[RoundResult], None]


class Coordinator:
    """A plan, the public keys of its sites, and the log of the run."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        import_pinned(settings.modules)
        self.plan = Plan.load(settings.plan)
        verify_plan(self.plan)
        self._sign = load_signer(settings.key)
        self._verifiers = _make_verifiers(self.plan, settings)
        self._local_model = LocalModel(self.plan)
        self._wire = Wire.for_model(self._local_model, modules=settings.modules)
        self._test = (
            None if settings.evaluation is None else read_records(settings.evaluation, self.plan)
        )
        self._initial = self._local_model.state()
        if settings.initial is not None:
            self._initial = _read_model(settings.initial, self._initial)
        self.log = RunLog(settings.log, run=self.plan.run, digest=self._wire.digest)

    def serve(
        self,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_round: OnRound = lambda row: None,
    ) -> RunResult:
        """Run all rounds that are not in the log yet, and write the results.

        Must be called in the main thread. It raises StoppedError after SIGTERM, and RunFailedError
        if too few sites reply; calling it again resumes the run.
        """
        settings = self.settings
        lock = lock_exclusively(settings.log, "another coordinator uses this log")
        try:
            with Listener(settings.socket, peers=settings.peers) as listener:
                on_ready()
                self.log.failure = None
                ledgers = self._make_ledgers()
                transport = RelayTransport(
                    *(self._wire, self.log, ledgers),
                    sign=self._sign,
                    verifiers=self._verifiers,
                    listener=listener,
                    settings=settings,
                )
                try:
                    result = self._run(transport, ledgers, self.plan.rounds, on_round)
                except RunFailedError as error:
                    self.log.failure = str(error)
                    transport.announce_end("failed")
                    raise
                write_result(settings.results, result)
                transport.announce_end("ended")
                return result
        finally:
            lock.release()

    def replay(self) -> RunResult:
        """Recompute the result of all closed rounds from the log."""
        ledgers = self._make_ledgers()
        transport = LoggedTransport(self._wire, self.log, ledgers)
        return self._run(transport, ledgers, self.log.count_closed(), lambda row: None)

    def _make_ledgers(self) -> list[Ledger | None]:
        """Return new ledgers, which track the sites' spending as implied by their answers."""
        return [require_ledger(self.plan, client, None) for client in range(len(self.plan.clients))]

    def _run(
        self,
        transport: Transport,
        ledgers: list[Ledger | None],
        rounds: int,
        on_round: OnRound,
    ) -> RunResult:
        server = LoggedServer(self._wire, self._initial, self.log, sign=self._sign, rounds=rounds)
        history = History(server, self._local_model, self._test, ledgers, evaluate_every=1)
        run_rounds(server, transport, [Recorder(history, self.log, on_round)])
        plan, metrics, chance = self.plan, {}, None
        if self._test is not None:
            labels = self._test.labels
            metrics = plan.task.full_metrics(history.predict(), labels)
            chance = plan.task.baseline(labels)
        result = Result(
            plan=plan,
            model=server.model,
            history=history.rows,
            metrics=metrics,
            chance=chance,
            accuracies=[None] * len(plan.clients),
            ledgers=ledgers,
            seconds=history.rows[-1].seconds if history.rows else 0.0,
            refused=history.refused,
            failed=history.failed,
        )
        return RunResult.describe(
            result, experiment=plan.run, traffic=self.log.measure_traffic(plan)
        )


def _make_verifiers(plan: Plan, settings: CoordinatorSettings) -> list[Verify]:
    """Return a function for each client that verifies its signatures."""
    names = [client.name for client in plan.clients]
    for name in settings.sites:
        if name not in names:
            raise InputError(f"sites.{name}: is not a client of the plan")
    for name in names:
        if name not in settings.sites:
            raise InputError(
                f"sites.{name}: is missing; each client of the plan needs a public key"
            )
    return [make_verifier(settings.sites[name], where=f"sites.{name}") for name in names]


def _read_model(path: Path, like: Tensors) -> Tensors:
    """Read an initial model, which must match the model of the plan."""
    try:
        model = load_file(path)
    except Exception as error:  # a damaged file can fail in any way
        raise DataError(f"{path}: is not a model ({error})") from None
    if {n: v.shape for n, v in model.items()} != {n: v.shape for n, v in like.items()}:
        raise DataError(f"{path}: does not match the model of the plan")
    return {name: model[name] for name in like}
