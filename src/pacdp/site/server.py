"""The socket at which a site answers: one request for each connection, one at a time.

A request and its answer are frames after their length (4 bytes, big-endian). Who may connect is
decided by the mode of the socket and by the user of the other process, which the kernel tells.
"""

import logging
import os
import selectors
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pacdp.errors import InputError
from pacdp.site.codec import Code
from pacdp.site.site import Site
from pacdp.site.timing import departure

LENGTH = struct.Struct(">I")
# Within this time a peer must have sent its request, and have read its answer.
PATIENCE_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")

_log = logging.getLogger(__name__)


def serve(site: Site, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGTERM or SIGINT; what is being answered then is finished.

    Must be called in the main thread. ``on_ready`` is called once the socket accepts connections.
    """
    path = site.settings.socket
    with _stop_signal() as stopped, _listen(path) as listener, selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(stopped, selectors.EVENT_READ)
        on_ready()
        while True:
            if any(key.fileobj is stopped for key, _ in ready.select()):
                return
            connection, _ = listener.accept()
            with connection:
                try:
                    _attend(site, connection)
                except OSError as error:
                    # The peer is gone, too slow, or sent nothing. Its reply is stored.
                    _log.info("connection: %s", error)
            _save_counts(site)


def _save_counts(site: Site) -> None:
    try:
        site.refusals.save()
    except OSError as error:
        _log.warning("%s: %s", site.refusals.path, error)


def _attend(site: Site, connection: socket.socket) -> None:
    """Answer the one request of a connection."""
    user = _peer_user(connection)
    if user not in (os.geteuid(), *site.settings.peers):
        _log.warning("connection of user %d: is not allowed", user)
        return
    deadline = time.monotonic() + PATIENCE_SECONDS
    size = LENGTH.unpack(_receive(connection, LENGTH.size, deadline))[0]
    if size > site.largest_request:
        start = time.monotonic()
        content = site.refuse(Code.MALFORMED)
    else:
        frame = _receive(connection, size, deadline)
        start = time.monotonic()
        content = site.answer(frame)
    leave = departure(start, time.monotonic(), site.interval)
    time.sleep(max(0.0, leave - time.monotonic()))
    connection.settimeout(PATIENCE_SECONDS)
    connection.sendall(LENGTH.pack(len(content)) + content)


def ask(path: Path, frame: bytes, *, timeout: float | None = None) -> bytes:
    """Send a request to the site at a socket, and return its answer, as a transport does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(LENGTH.pack(len(frame)) + frame)
        size = LENGTH.unpack(_receive(connection, LENGTH.size))[0]
        return _receive(connection, size)


def _receive(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read exactly so many bytes, all of them before the deadline."""
    parts, missing = [], size
    while missing:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(missing, 2**20))
        if not part:
            raise ConnectionError("ended before the whole message")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _peer_user(connection: socket.socket) -> int:
    """Return the number of the user that has opened the other end."""
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(content)[1])


@contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """Listen at a socket of mode 660, and remove it in the end."""
    _remove_abandoned(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # Nobody else may connect before the mode is right.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot listen there: {error.strerror or error}") from None
        finally:
            os.umask(before)
        path.chmod(0o660)
        listener.listen(16)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Remove the socket of a process that was killed; refuse anything else at its place."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{path}: exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise InputError(f"{path}: another process listens there")


@contextmanager
def _stop_signal() -> Iterator[socket.socket]:
    """Return a socket that becomes readable at SIGTERM or SIGINT."""
    stopped, sender = socket.socketpair()
    with stopped, sender:
        sender.setblocking(False)
        before = {
            number: signal.signal(number, lambda *_: sender.send(b"."))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield stopped
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
