"""Transports of the coordinator: answers arrive through a relay, or are read from the log."""

import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pacdp.coordinator.log import RunLog
from pacdp.coordinator.settings import CoordinatorSettings
from pacdp.errors import BudgetExceededError, InputError, PacdpError
from pacdp.federation import Broadcast, Plan, Reply
from pacdp.federation.client import freeze_sampled
from pacdp.federation.messages import Answers, Refusal
from pacdp.federation.wire import Code, Wire, WireError, frame_digest, replace_signature
from pacdp.keys import Sign, Verify
from pacdp.privacy import Ledger
from pacdp.relay_protocol import LARGEST_HEADER, RelayRequest, RoundState
from pacdp.sockets import PEER_TIMEOUT_SECONDS, Listener, receive, receive_length, send_message

_log = logging.getLogger(__name__)
# Seconds to wait for a relay's next request, which is answered with the end of the run.
_ANNOUNCEMENT_SECONDS = 20.0


class StoppedError(PacdpError):
    """The coordinator was asked to stop; restarting it resumes the run."""


class RunFailedError(PacdpError):
    """A round has fewer replies than it needs, and no site is left to ask."""


class LoggedTransport:
    """Returns the answers of closed rounds from the log.

    The releases that these answers imply are charged to ``ledgers``.
    """

    def __init__(
        self,
        wire: Wire,
        log: RunLog,
        ledgers: Sequence[Ledger | None],
    ) -> None:
        self._wire, self._log, self._ledgers = wire, log, ledgers

    @property
    def _plan(self) -> Plan:
        return self._wire.plan

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Return the answers of a closed round, in the order of the clients."""
        if not self._log.is_closed(broadcast.round):
            raise InputError(f"{self._log.path}: round {broadcast.round + 1} is not closed")
        frames = self._log.answers(broadcast.round)
        # Signatures were verified on arrival, with keys that may have been replaced since.
        answers = {
            client: self._read(frames[client], client, broadcast, verify=lambda *_: True)
            for client in client_ids
            if client in frames
        }
        for client, answer in answers.items():
            self._charge(client, answer, broadcast.round)
        return answers

    def _read_broadcast(self, number: int) -> bytes:
        frame = self._log.find_broadcast(number)
        if frame is None:
            raise InputError(f"{self._log.path}: round {number + 1} has no broadcast")
        return frame

    def _read(
        self, frame: bytes, client: int, broadcast: Broadcast, *, verify: Verify
    ) -> Reply | Refusal:
        """Verify and decode an answer; raise WireError if it is invalid."""
        received = self._wire.decode_answer(
            frame,
            client=client,
            broadcast=broadcast,
            broadcast_digest=frame_digest(self._read_broadcast(broadcast.round)),
            verify=verify,
        )
        return received if isinstance(received, Refusal) else received.reply

    def _charge(self, client: int, answer: Reply | Refusal, number: int) -> None:
        """Charge a reply, including one that the site debited but lost."""
        plan, ledger = self._plan, self._ledgers[client]
        if ledger is None:
            return
        if isinstance(answer, Reply):
            scale = answer.noise_scale
        elif answer.reason == Code.LOST:
            scale = plan.noise_scale(client, number, ledger)
        else:
            return
        try:
            releases = plan.planned_releases(client, scale=scale)
            freeze_sampled(plan, client, ledger, releases)
            ledger.reserve(*releases, run=plan.run, label=plan.label)
        except (BudgetExceededError, InputError) as error:
            # An honest site would not have sent this answer.
            _log.warning("round %d, %s: %s", number + 1, plan.clients[client].name, error)


class RelayTransport(LoggedTransport):
    """Collects the answers of a round at the coordinator's socket, and adds them to the log.

    A round is closed when all sites have answered, or at its deadline if it has enough replies. The
    run fails if all sites have answered and too few of them replied.
    """

    def __init__(
        self,
        wire: Wire,
        log: RunLog,
        ledgers: Sequence[Ledger | None],
        *,
        sign: Sign,
        verifiers: Sequence[Verify],
        listener: Listener,
        settings: CoordinatorSettings,
    ) -> None:
        super().__init__(wire, log, ledgers)
        self._sign, self._verifiers = sign, verifiers
        self._listener, self._settings = listener, settings
        self._names = [client.name for client in wire.plan.clients]
        self._largest = LARGEST_HEADER + max(map(wire.largest_answer, range(len(self._names))))

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Return the answers of a round, after waiting until it is closed."""
        if not self._log.is_closed(broadcast.round):
            current = _OpenRound(broadcast, client_ids, set(self._log.answers(broadcast.round)))
            self._collect(current)
            self._log.close_round(broadcast.round, current.refusals)
        return super().ask(broadcast, client_ids)

    def _collect(self, current: "_OpenRound") -> None:
        """Serve the relay until the round can be closed."""
        number, asked = current.broadcast.round + 1, len(current.asked)
        needed = min(self._settings.minimum, asked)
        deadline = time.monotonic() + self._settings.deadline
        while current.wanted:
            overdue, enough = time.monotonic() >= deadline, len(current.replied) >= needed
            if overdue and enough:
                return
            connection = self._listener.accept(None if overdue else deadline)
            if self._listener.stopped:
                raise StoppedError(f"stopped in round {number}; start it again to resume")
            if connection is not None:
                self._handle_connection(
                    connection, lambda request: self._handle_request(current, request, deadline)
                )
            elif not enough:
                _log.warning(
                    "round %d: %d of %d replies at the deadline, %d needed; waiting for more",
                    *(number, len(current.replied), asked, needed),
                )
        if len(current.replied) < needed:
            codes = ", ".join(sorted(code for code, _ in current.refusals.values()))
            raise RunFailedError(
                f"round {number}: {len(current.replied)} of {asked} sites replied, {needed} "
                f"needed; the others refused: {codes}"
            )

    def _handle_connection(
        self, connection: socket.socket, respond: Callable[[RelayRequest], bytes]
    ) -> bool:
        """Answer the single request of a connection; return False if that failed."""
        deadline = time.monotonic() + PEER_TIMEOUT_SECONDS
        try:
            with connection:
                size = receive_length(connection, deadline)
                if size > self._largest:
                    raise InputError(f"announces {size} bytes, at most {self._largest} are allowed")
                request = RelayRequest.decode(receive(connection, size, deadline))
                content = respond(request)
                connection.settimeout(PEER_TIMEOUT_SECONDS)
                send_message(connection, content)
        except (OSError, InputError) as error:
            _log.info("connection: %s", error)
            return False
        return True

    def _handle_request(
        self, current: "_OpenRound", request: RelayRequest, deadline: float
    ) -> bytes:
        """Record the answer in a request, if it is wanted, and return the state of the round."""
        number = current.broadcast.round
        if request.site in self._names and request.round == number:
            client = self._names.index(request.site)
            if client in current.wanted:
                self._record_answer(current, client, request.answer)
        state = RoundState(
            *("open", number, tuple(self._names[client] for client in current.wanted)),
            max(0.0, deadline - time.monotonic()),
        )
        if request.round == number:
            return state.encode()
        return state.encode(replace_signature(self._read_broadcast(number), sign=self._sign))

    def _record_answer(self, current: "_OpenRound", client: int, frame: bytes) -> None:
        number, name = current.broadcast.round, self._names[client]
        try:
            answer = self._read(frame, client, current.broadcast, verify=self._verifiers[client])
            self._check_cost(client, answer)
        except (WireError, BudgetExceededError) as error:
            _log.warning("round %d, %s: %s", number + 1, name, error)
            return
        if isinstance(answer, Reply):
            self._log.add_reply(number, client, frame)
            current.replied.add(client)
        elif answer.reason != Code.BUSY:
            _log.warning("round %d, %s: refused: %s", number + 1, name, answer.reason)
            current.refusals[client] = (answer.reason, frame)

    def _check_cost(self, client: int, answer: Reply | Refusal) -> None:
        """Refuse a reply that would exceed the plan's budget: an honest site would not send it."""
        ledger = self._ledgers[client]
        if ledger is None or isinstance(answer, Refusal):
            return
        releases = self._plan.planned_releases(client, scale=answer.noise_scale)
        if not any(release.sampled for release in releases):
            ledger.filter.spend(*releases)

    def announce_end(self, state: str) -> None:
        """Tell the relay the outcome of the run, if it asks within a few seconds."""
        message = RoundState(state, self._plan.rounds).encode()
        deadline = time.monotonic() + _ANNOUNCEMENT_SECONDS
        while connection := self._listener.accept(deadline):
            if self._handle_connection(connection, lambda request: message):
                return


@dataclass
class _OpenRound:
    """The answers to a round so far."""

    broadcast: Broadcast
    asked: Sequence[int]
    replied: set[int]
    refusals: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Codes and bytes, by client."""

    @property
    def wanted(self) -> list[int]:
        """The clients that have not answered yet."""
        return [
            client
            for client in self.asked
            if client not in self.replied and client not in self.refusals
        ]
