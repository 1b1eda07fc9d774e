"""Code that both apps share, and the main loop of the ServerApp.

This module uses only the standard library. It moves bytes without interpreting them: only the
coordinator and the sites understand broadcasts and answers.
"""

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

LENGTH = struct.Struct(">I")
# No message, in either direction, may be larger.
LIMIT_BYTES = 256 * 2**20
# If the coordinator does not respond within this time, it is asked again.
COORDINATOR_SECONDS = 30.0
# Allowed for delivery in both directions, in addition to the time that the site may take.
MARGIN_SECONDS = 60.0
# After this many consecutive failures to list the nodes, the run is over or Flower is broken.
GIVE_UP_AFTER = 10

_log = logging.getLogger("pacdp_relay")


def exchange(path: str, message: bytes, *, seconds: float, limit: int = LIMIT_BYTES) -> bytes:
    """Send a message to the process at a Unix socket, and return its answer.

    Each is preceded by its length (4 bytes, big-endian). Raises OSError if the answer is not
    complete after ``seconds``, or larger than ``limit``.
    """
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(LENGTH.pack(len(message)) + message)
        (size,) = LENGTH.unpack(_receive(connection, LENGTH.size, deadline))
        if size > limit:
            raise OSError(f"an answer of {size} bytes is larger than {limit}")
        return _receive(connection, size, deadline)


def pack(header: Mapping[str, object], payload: bytes = b"") -> bytes:
    """Encode a message to or from the coordinator: header length, JSON header, payload.

    >>> unpack(pack({"round": 3}, b"bytes"))
    ({'round': 3}, b'bytes')
    """
    encoded = json.dumps(header).encode()
    return LENGTH.pack(len(encoded)) + encoded + payload


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a message into header and payload; raise ValueError if it is malformed."""
    size = int.from_bytes(message[: LENGTH.size], "big")
    end = LENGTH.size + size
    try:
        header = json.loads(message[LENGTH.size : end])
    except ValueError:
        header = None
    if len(message) < end or not isinstance(header, dict):
        raise ValueError("the message is malformed")
    return header, message[end:]


def locate_site(node: Mapping[str, object], run: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of a node's site, and the path of its socket.

    On a real node, both are in the node's configuration, which its owner writes. In Flower's
    simulation, the run's configuration contains the sites and the folder of the federation.

    >>> locate_site({"partition-id": 1}, {"sites": "north,south", "folder": "/srv/trial"})
    ('south', '/srv/trial/sites/south/site.sock')
    """
    if "site" in node:
        return str(node["site"]), str(node["socket"])
    names = [name.strip() for name in str(run["sites"]).split(",")]
    name = names[int(str(node["partition-id"]))]
    return name, str(Path(str(run["folder"])) / "sites" / name / "site.sock")


class Nodes(Protocol):
    """Access to the nodes of a federation."""

    def list_online(self) -> Mapping[int, str]:
        """Return the nodes that are online, each with a value that changes when it restarts."""

    def ask(
        self, node: int, request: "Request", seconds: float, cancelled: threading.Event
    ) -> bytes:
        """Send a request to a node, and return its answer; empty if it gives none."""


@dataclass(frozen=True)
class Request:
    """A request to a node: a broadcast, or without a round, a query for its site's name."""

    round: int | None = None
    frame: bytes = b""
    seconds: float = COORDINATOR_SECONDS


@dataclass
class _Pending:
    node: int
    round: int | None
    mark: str
    overdue: float
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Failures:
    count: int = 0
    resume: float = 0.0


class Relay:
    """Carries broadcasts to the nodes of the wanted sites, and their answers to the coordinator.

    Failures are retried: a node that does not answer is asked again after a pause, and an answer
    that cannot be delivered is kept. Asking a site twice is safe, because it answers the same
    broadcast with the same bytes.
    """

    def __init__(
        self,
        nodes: Nodes,
        coordinator: Callable[[bytes], bytes],
        *,
        patience: float = 60.0,
        pause: float = 2.0,
        longest_pause: float = 15.0,
        tick: float = 0.1,
        refresh: float = 2.0,
    ) -> None:
        self._nodes, self._coordinator = nodes, coordinator
        self._patience, self._pause, self._longest_pause = patience, pause, longest_pause
        self._tick, self._refresh = tick, refresh
        self._state = "waiting"
        self._round: int | None = None
        self._frame = b""
        self._wanted: frozenset[str] = frozenset()
        self._closes_at = 0.0
        self._sites: dict[int, str] = {}
        self._failures: dict[int, _Failures] = {}
        self._pending: dict[Future[bytes], _Pending] = {}
        self._answers: list[tuple[str, bytes]] = []
        self._online: Mapping[int, str] = {}
        self._reachable = True
        self._errors = 0

    def run(self) -> str:
        """Relay until the coordinator reports the end of the run; return "ended" or "failed"."""
        self._pool = ThreadPoolExecutor(max_workers=512)
        called = refreshed = 0.0
        try:
            while self._state not in ("ended", "failed"):
                now = time.monotonic()
                self._deliver_answers()
                # Poll quickly between rounds; during a round, answers matter more.
                if now - called >= (self._refresh if self._state == "open" else self._tick):
                    called = now
                    self._call_coordinator()
                if now - refreshed >= self._refresh:
                    refreshed = now
                    self._list_online()
                self._drop_expired()
                self._send()
                self._collect()
            return self._state
        finally:
            for pending in self._pending.values():
                pending.cancelled.set()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _call_coordinator(self, site: str | None = None, answer: bytes = b"") -> bool:
        """Poll the coordinator, with a site's answer if given; return whether it responded."""
        number: int | None
        try:
            message = self._coordinator(pack({"round": self._round, "site": site}, answer))
            reply, frame = unpack(message)
            state = str(reply["state"])
            if state == "open":
                number, closes = int(reply["round"]), float(reply["seconds"])
                self._wanted = frozenset(map(str, reply["sites"]))
            else:
                number, closes, self._wanted = self._round, 0.0, frozenset()
        except (OSError, ValueError, KeyError, TypeError) as error:
            if self._reachable:
                _log.warning("coordinator: no answer (%s); trying again", type(error).__name__)
            self._reachable = False
            return False
        self._reachable, self._state = True, state
        self._closes_at = time.monotonic() + closes
        if number is not None and number != self._round:
            self._open_round(number, frame)
        return True

    def _open_round(self, number: int, frame: bytes) -> None:
        """Start relaying a round, and discard the state of the previous one."""
        self._round, self._frame = number, frame
        self._failures.clear()
        self._answers.clear()
        for pending in self._pending.values():
            if pending.round is not None:
                pending.cancelled.set()
        _log.info("round %d: %d sites wanted", number, len(self._wanted))

    def _deliver_answers(self) -> None:
        """Deliver the answers to the coordinator; keep them while it cannot be reached."""
        while self._answers:
            first = self._answers[0]
            if not self._call_coordinator(*first):
                return
            # If the coordinator has opened the next round, the list was cleared.
            if self._answers and self._answers[0] is first:
                del self._answers[0]

    def _list_online(self) -> None:
        try:
            self._online = self._nodes.list_online()
            self._errors = 0
        except Exception:
            self._errors += 1
            if self._errors >= GIVE_UP_AFTER:
                raise
            _log.warning("nodes: cannot be listed; trying again")

    def _drop_expired(self) -> None:
        """Drop requests that were cancelled or timed out, or whose nodes were restarted."""
        now = time.monotonic()
        for future, pending in list(self._pending.items()):
            restarted = self._online.get(pending.node, pending.mark) != pending.mark
            if restarted or now > pending.overdue or pending.cancelled.is_set():
                pending.cancelled.set()
                del self._pending[future]
                if now > pending.overdue:
                    self._back_off(pending.node)

    def _send(self) -> None:
        """Ask every idle node whose site is wanted or not known yet."""
        now = time.monotonic()
        busy = {pending.node for pending in self._pending.values()}
        wanted = self._wanted - {site for site, _ in self._answers}
        for node, mark in self._online.items():
            if node in busy or now < self._failures.get(node, _Failures()).resume:
                continue
            if node not in self._sites:
                request = Request()
            elif self._sites[node] in wanted:
                seconds = max(1.0, min(self._patience, self._closes_at - now))
                request = Request(self._round, self._frame, seconds)
            else:
                continue
            longest = request.seconds + MARGIN_SECONDS
            pending = _Pending(node, request.round, mark, now + longest)
            future = self._pool.submit(self._nodes.ask, node, request, longest, pending.cancelled)
            self._pending[future] = pending

    def _collect(self) -> None:
        """Wait briefly for answers, and collect those that have arrived."""
        if not self._pending:
            time.sleep(self._tick)
            return
        done, _ = wait(self._pending, timeout=self._tick, return_when=FIRST_COMPLETED)
        for future in done:
            pending = self._pending.pop(future)
            error = future.exception()
            if error is not None:
                _log.warning("node %d: %s", pending.node, type(error).__name__)
            answer = b"" if error is not None else future.result()
            if pending.cancelled.is_set():
                continue
            if not answer:
                self._back_off(pending.node)
            elif pending.round is None:
                self._sites[pending.node] = answer.decode(errors="replace")
                self._failures.pop(pending.node, None)
                _log.info("node %d: belongs to %s", pending.node, self._sites[pending.node])
            else:
                # If the answer is not accepted, the site is asked again, but not immediately.
                self._back_off(pending.node)
                self._answers.append((self._sites[pending.node], answer))
        self._deliver_answers()

    def _back_off(self, node: int) -> None:
        failures = self._failures.setdefault(node, _Failures())
        # Bounded, because after a thousand failures the power would be too large for a number.
        pause = min(self._longest_pause, self._pause * 2 ** min(failures.count, 32))
        failures.count += 1
        failures.resume = time.monotonic() + pause


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    missing = size
    while missing:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(missing, 2**20))
        if not part:
            raise ConnectionError("closed before the whole message arrived")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
