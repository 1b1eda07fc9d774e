"""What both halves of the relay share, and the loop of the server's half.

This module needs the standard library only. It moves bytes and understands none of them: what a
broadcast and an answer hold is the business of the coordinator and of the sites.
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
# Within this time the coordinator must have answered; otherwise it is asked again.
COORDINATOR_SECONDS = 30.0
# A message may wait for its node, and its reply for us, so many seconds longer than the site works.
MARGIN_SECONDS = 60.0
# If the nodes cannot be listed so often in a row, the run is over, or Flower is broken.
GIVE_UP_AFTER = 10

_log = logging.getLogger("pacdp_relay")


def exchange(path: str, message: bytes, *, seconds: float, limit: int = LIMIT_BYTES) -> bytes:
    """Send a message to the process at a Unix socket, and return its answer.

    Both have a length of 4 bytes (big-endian) before them. Raises OSError if the answer is not
    complete after so many seconds, or larger than the limit.
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
    """Return a message to or from the coordinator: length of the header, header in JSON, payload.

    >>> unpack(pack({"round": 3}, b"bytes"))
    ({'round': 3}, b'bytes')
    """
    encoded = json.dumps(header).encode()
    return LENGTH.pack(len(encoded)) + encoded + payload


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and payload of a message; raise ValueError if it is damaged."""
    size = int.from_bytes(message[: LENGTH.size], "big")
    end = LENGTH.size + size
    try:
        header = json.loads(message[LENGTH.size : end])
    except ValueError:
        header = None
    if len(message) < end or not isinstance(header, dict):
        raise ValueError("the message is damaged")
    return header, message[end:]


def locate_site(node: Mapping[str, object], run: Mapping[str, object]) -> tuple[str, str]:
    """Return the name of the site of a node, and the path of its socket.

    A real node is told both by its owner. In Flower's simulation the run's configuration names the
    sites and the folder of the federation.

    >>> locate_site({"partition-id": 1}, {"sites": "north,south", "folder": "/srv/trial"})
    ('south', '/srv/trial/sites/south/site.sock')
    """
    if "site" in node:
        return str(node["site"]), str(node["socket"])
    names = [name.strip() for name in str(run["sites"]).split(",")]
    name = names[int(str(node["partition-id"]))]
    return name, str(Path(str(run["folder"])) / "sites" / name / "site.sock")


class Nodes(Protocol):
    """The nodes that are reached through Flower."""

    def list_online(self) -> Mapping[int, str]:
        """Return the nodes that are online, each with a mark that changes when it is restarted."""

    def ask(
        self, node: int, request: "Request", seconds: float, cancelled: threading.Event
    ) -> bytes:
        """Send a request to a node, and return its answer; empty if there is none."""


@dataclass(frozen=True)
class Request:
    """What is sent to a node: a broadcast, or without a round the question for its site's name."""

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
    """Brings the coordinator's broadcasts to the nodes of the wanted sites, and answers back.

    Nothing is lost for good here: a node that does not answer is asked again after a pause, and an
    answer that the coordinator could not be given is offered again. Asking a site twice is safe,
    because it answers the same broadcast with the same bytes.
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
        self._closes = 0.0
        self._sites: dict[int, str] = {}
        self._failures: dict[int, _Failures] = {}
        self._pending: dict[Future[bytes], _Pending] = {}
        self._answers: list[tuple[str, bytes]] = []
        self._online: Mapping[int, str] = {}
        self._reachable = True
        self._errors = 0

    def run(self) -> str:
        """Relay until the coordinator says that the run is over, and return "ended" or "failed"."""
        self._pool = ThreadPoolExecutor(max_workers=512)
        called = refreshed = 0.0
        try:
            while self._state not in ("ended", "failed"):
                now = time.monotonic()
                self._deposit()
                # Between two rounds every moment counts; while one is open, answers do.
                if now - called >= (self._refresh if self._state == "open" else self._tick):
                    called = now
                    self._call()
                if now - refreshed >= self._refresh:
                    refreshed = now
                    self._list_online()
                self._drop_lost()
                self._send()
                self._collect()
            return self._state
        finally:
            for pending in self._pending.values():
                pending.cancelled.set()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, site: str | None = None, answer: bytes = b"") -> bool:
        """Give the coordinator a site's answer, or nothing; whether it could be reached."""
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
        self._closes = time.monotonic() + closes
        if number is not None and number != self._round:
            self._open(number, frame)
        return True

    def _open(self, number: int, frame: bytes) -> None:
        """Begin to relay a round; what belongs to the one before is of no use any more."""
        self._round, self._frame = number, frame
        self._failures.clear()
        self._answers.clear()
        for pending in self._pending.values():
            if pending.round is not None:
                pending.cancelled.set()
        _log.info("round %d: %d sites are wanted", number, len(self._wanted))

    def _deposit(self) -> None:
        """Give the answers to the coordinator; while it cannot be reached they are kept."""
        while self._answers:
            first = self._answers[0]
            if not self._call(*first):
                return
            # The coordinator may have opened the next round, which has cleared the list.
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

    def _drop_lost(self) -> None:
        """Forget the requests of nodes that were restarted or have not answered for too long."""
        now = time.monotonic()
        for future, pending in list(self._pending.items()):
            restarted = self._online.get(pending.node, pending.mark) != pending.mark
            if restarted or now > pending.overdue or pending.cancelled.is_set():
                pending.cancelled.set()
                del self._pending[future]
                if now > pending.overdue:
                    self._fail(pending.node)

    def _send(self) -> None:
        """Ask every node that is free, and whose site is wanted or not yet known."""
        now = time.monotonic()
        busy = {pending.node for pending in self._pending.values()}
        wanted = self._wanted - {site for site, _ in self._answers}
        for node, mark in self._online.items():
            if node in busy or now < self._failures.get(node, _Failures()).resume:
                continue
            if node not in self._sites:
                request = Request()
            elif self._sites[node] in wanted:
                seconds = max(1.0, min(self._patience, self._closes - now))
                request = Request(self._round, self._frame, seconds)
            else:
                continue
            longest = request.seconds + MARGIN_SECONDS
            pending = _Pending(node, request.round, mark, now + longest)
            future = self._pool.submit(self._nodes.ask, node, request, longest, pending.cancelled)
            self._pending[future] = pending

    def _collect(self) -> None:
        """Take the answers that have come, after waiting a little for one."""
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
                self._fail(pending.node)
            elif pending.round is None:
                self._sites[pending.node] = answer.decode(errors="replace")
                self._failures.pop(pending.node, None)
                _log.info("node %d: is the node of %s", pending.node, self._sites[pending.node])
            else:
                # If the site is wanted after this answer, it is asked again, but not at once.
                self._fail(pending.node)
                self._answers.append((self._sites[pending.node], answer))
        self._deposit()

    def _fail(self, node: int) -> None:
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
            raise ConnectionError("ended before the whole message")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
