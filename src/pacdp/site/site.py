"""A site answers broadcasts with a client's data, each round once, and trusts no other party.

Only the site can read its records, ledger and key. A request gets a signed reply, or a refusal with
one of a few fixed codes. Every check happens before the debit. A round is debited for one broadcast
and always answered with the same bytes, even after a crash: the reply is stored in the ledger,
together with its entry, before it is sent.

Formal guarantee: for any sequence of requests, and even if the process is killed at any time, all
answers together are (ε, δ)-private for the ledger's budget, adjacency and unit, unless the ledger
and the file with its newest head are both replaced by older copies.
"""

import logging
import traceback
from types import TracebackType
from typing import Self

from pacdp.errors import BudgetExceededError, LedgerError, StaleLedgerError
from pacdp.federation import Broadcast, Client, LocalModel, Reply
from pacdp.federation.record_files import read_records
from pacdp.federation.wire import Code, Wire, WireError, frame_digest
from pacdp.keys import load_signer, make_verifier
from pacdp.privacy import Ledger, RoundRequest, SQLiteLedger
from pacdp.site.head_file import HeadFile
from pacdp.site.plans import find_client, read_accepted_plan
from pacdp.site.refusal_counts import RefusalCounts
from pacdp.site.round_ledger import RoundLedger
from pacdp.site.settings import SiteSettings
from pacdp.site.timing import measure_interval
from pacdp.storage import lock_exclusively
from pacdp.validation import require_private_file

_log = logging.getLogger(__name__)


class Site:
    """A client with its records, ledger and key, ready to answer. Use it as a context manager.

    Its noise comes from the operating system's entropy and cannot be seeded.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self._lock = lock_exclusively(settings.ledger, "another site process uses this ledger")
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        settings = self.settings
        for path in (settings.data, settings.ledger):
            require_private_file(path)
        self.plan = read_accepted_plan(settings)
        self.number = find_client(self.plan, settings.client)
        self._sign = load_signer(settings.key)
        self._verify = make_verifier(settings.coordinator)
        self._head_file = HeadFile(settings.head)
        self.stale = False
        try:
            self.ledger = SQLiteLedger(settings.ledger, head=self._head_file.read())
        except StaleLedgerError as error:
            # An older copy: later spending is unknown, so the whole budget counts as spent.
            _log.error("%s; every request is refused", error)
            self.ledger = SQLiteLedger(settings.ledger)
            self.stale = True
        self._local_model = LocalModel(self.plan)
        self._wire = Wire.for_model(self._local_model, modules=settings.modules)
        self._records = read_records(settings.data, self.plan)
        # Refuses records, units, levels or a ledger that do not fit the plan.
        self._make_client(self.ledger, checked=False)
        if not self.stale:
            self._head_file.write(self.ledger.head)
        # This also warms up the model.
        self.interval = self._choose_interval()
        self._unstored: dict[RoundRequest, bytes] = {}
        self.refusals = RefusalCounts.beside(settings.ledger)

    def _choose_interval(self) -> float:
        """Return the interval of the settings, or the measured one if that is longer."""
        settings = self.settings
        measured = measure_interval(
            *(self._local_model, self.number, self._records),
            ledger=settings.ledger,
            head=settings.head,
        )
        return max(measured, settings.interval or 0.0)

    @property
    def largest_request(self) -> int:
        """The most bytes of a request; longer ones are refused unread."""
        return self._wire.largest_broadcast

    def answer(self, frame: bytes) -> bytes:
        """Return the signed reply to a broadcast, or a signed refusal. Never raises."""
        number: int | None = None
        try:
            broadcast = self._wire.decode_broadcast(frame, client=self.number, verify=self._verify)
            number = broadcast.round
            return self._answer(broadcast, frame_digest(frame))
        except WireError as error:
            return self.refuse(error.code, number)
        except BudgetExceededError as error:
            _log.warning("round %s: %s", number, error)
            return self.refuse(Code.BUDGET, number)
        except StaleLedgerError as error:
            _log.error("%s; every request is refused", error)
            self.stale = True
            return self.refuse(Code.BUDGET, number)
        except Exception as error:
            # Such as a full disk. Only the owner may see the details.
            _log.error("round %s: %s", number, _describe_error(error))
            return self.refuse(Code.BUSY, number)

    def refuse(self, code: Code, number: int | None = None) -> bytes:
        """Return a signed refusal."""
        self.refusals.add(code)
        return self._wire.encode_refusal(code, client=self.number, round=number, sign=self._sign)

    def _answer(self, broadcast: Broadcast, broadcast_digest: str) -> bytes:
        if self.stale:
            raise WireError(Code.BUDGET)
        request = RoundRequest(self.plan.run, broadcast.round, broadcast_digest)
        known = self.ledger.find_round(request.run, request.round)
        if known is not None and known.request != request:
            raise WireError(Code.ANSWERED)
        if known is not None and known.reply is not None:
            content = self.ledger.read_reply(request)
            if content is None:
                raise WireError(Code.LOST)
        else:
            # Whether a reply can be stored may depend on its size, and so on its noise. On a full
            # disk it is kept and stored later, because only one computation is paid for.
            if request not in self._unstored:
                self._unstored[request] = self._compute(broadcast, request)
            content = self.ledger.store_reply(request, self._unstored[request])
            del self._unstored[request]
        # Written before the reply is sent, so that restoring a backup cannot hide the reply.
        self._head_file.write(self.ledger.head)
        return content

    def _compute(self, broadcast: Broadcast, request: RoundRequest) -> bytes:
        """Debit the round unless it is debited already, train, and return the encoded answer."""
        try:
            reply = self._make_client(RoundLedger(self.ledger, request)).answer(broadcast)
            return self._encode(reply, broadcast, request)
        except Exception as error:
            if self.ledger.find_round(request.run, request.round) is None:
                raise
            # Whether this fails may depend on the records, for instance if weights are so large
            # that an update overflows. Each attempt draws fresh noise, and only one is paid for:
            # so this refusal is stored as the permanent answer to the round.
            _log.error("round %s: %s", request.round, _describe_error(error))
            return self.refuse(Code.LOST, request.round)

    def _encode(self, reply: Reply, broadcast: Broadcast, request: RoundRequest) -> bytes:
        paid = self.ledger.find_round(request.run, request.round)
        if paid is None or paid.request != request:
            raise LedgerError(f"{self.ledger.path}: round {request.round} is not debited")
        return self._wire.encode_reply(
            reply,
            broadcast=broadcast,
            broadcast_digest=request.broadcast,
            head=paid.head,
            sign=self._sign,
        )

    def _make_client(self, ledger: Ledger, *, checked: bool = True) -> Client:
        return Client(
            *(self.number, self.plan, self._records),
            ledger=ledger,
            local_model=self._local_model,
            checked=checked,
        )

    def close(self) -> None:
        """Release the lock on the ledger."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _describe_error(error: BaseException) -> str:
    """Describe what failed and where.

    The text of an error may contain values from records, so it is shown only for file errors.
    """
    if isinstance(error, LedgerError | OSError):
        return f"{type(error).__name__}: {error}"
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
