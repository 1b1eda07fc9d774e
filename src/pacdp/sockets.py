"""Unix sockets for the processes of a federation: one message and one answer per connection.

Each message is preceded by its length (4 bytes, big-endian). Access is controlled by the mode of
the socket, and by the user ID of the peer, which the kernel reports.
"""

import logging
import os
import selectors
import signal
import socket
import stat
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pacdp.errors import InputError

LENGTH = struct.Struct(">I")
# A peer must send its whole message within this time, and then read the answer within it.
PEER_TIMEOUT_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")

_log = logging.getLogger(__name__)


class Listener:
    """A socket of mode 660 that accepts connections by allowed users until SIGTERM or SIGINT.

    It must be used in the main thread, as a context manager. ``peers`` are the IDs of the users
    that may connect, besides the user of this process.
    """

    def __init__(self, path: Path, *, peers: tuple[int, ...] = ()) -> None:
        self._path, self._allowed = path, {os.geteuid(), *peers}
        self._exit = ExitStack()
        self.stopped = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._listener = stack.enter_context(_listen(self._path))
            stack.callback(self._path.unlink, missing_ok=True)
            # A signal handler writes to the second, which makes the first readable.
            self._signal, sender = socket.socketpair()
            stack.enter_context(self._signal)
            stack.enter_context(sender).setblocking(False)
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, lambda *_: _notify(sender))
                stack.callback(signal.signal, number, before)
            self._ready = stack.enter_context(selectors.DefaultSelector())
            self._ready.register(self._listener, selectors.EVENT_READ)
            self._ready.register(self._signal, selectors.EVENT_READ)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    def accept(self, deadline: float | None = None) -> socket.socket | None:
        """Return the next connection; None once stopped, or at the deadline (monotonic time)."""
        while not self.stopped:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._ready.select(wait)
            self.stopped = any(key.fileobj is self._signal for key, _ in ready)
            if self.stopped or not ready:
                break
            connection, _ = self._listener.accept()
            user = _peer_user(connection)
            if user in self._allowed:
                return connection
            connection.close()
            _log.warning("connection by user %d: not allowed", user)
        return None


def _notify(sender: socket.socket) -> None:
    # After hundreds of signals the buffer is full; an error here would interrupt the main thread.
    with suppress(BlockingIOError):
        sender.send(b".")


def ask(path: Path, message: bytes, *, timeout: float | None = None) -> bytes:
    """Send a message to the process at a socket, and return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        send_message(connection, message)
        return receive(connection, receive_length(connection))


def send_message(connection: socket.socket, message: bytes) -> None:
    """Send a message, preceded by its length."""
    connection.sendall(LENGTH.pack(len(message)) + message)


def receive_length(connection: socket.socket, deadline: float | None = None) -> int:
    """Return the length of the message that follows."""
    return int(LENGTH.unpack(receive(connection, LENGTH.size, deadline))[0])


def receive(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read exactly ``size`` bytes, all of them before the deadline."""
    parts, missing = [], size
    while missing:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(missing, 2**20))
        if not part:
            raise ConnectionError("closed before the whole message arrived")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def is_listening(path: Path) -> bool | None:
    """Whether a process listens on a socket; None if this user has no access to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except PermissionError:
            return None
        except OSError:
            return False
    return True


def _peer_user(connection: socket.socket) -> int:
    """Return the user ID of the process at the other end."""
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(content)[1])


def _listen(path: Path) -> socket.socket:
    _remove_abandoned(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # No other user may connect before the mode is set.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise InputError(f"{path}: cannot listen on it: {error.strerror or error}") from None
    finally:
        os.umask(before)
    path.chmod(0o660)
    listener.listen(64)
    return listener


def _remove_abandoned(path: Path) -> None:
    """Remove the socket of a process that was killed; refuse any other existing file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{path}: exists and is not a socket")
    if is_listening(path):
        raise InputError(f"{path}: another process is listening on it")
    path.unlink()
