"""The socket on which a site answers: one request per connection, one at a time."""

import logging
import socket
import time
from collections.abc import Callable

from pacdp.federation.wire import Code
from pacdp.site.site import Site
from pacdp.site.timing import compute_departure
from pacdp.sockets import PEER_TIMEOUT_SECONDS, Listener, receive, receive_length, send_message

_log = logging.getLogger(__name__)


def serve(site: Site, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGTERM or SIGINT; a request in progress is completed.

    Must be called in the main thread. ``on_ready`` is called once the socket accepts connections.
    """
    with Listener(site.settings.socket, peers=site.settings.peers) as listener:
        on_ready()
        while connection := listener.accept():
            with connection:
                try:
                    _handle_connection(site, connection)
                except OSError as error:
                    # The peer disconnected or was too slow. A reply is stored and can be resent.
                    _log.info("connection: %s", error)
            _save_counts(site)


def _save_counts(site: Site) -> None:
    try:
        site.refusals.save()
    except OSError as error:
        _log.warning("%s: %s", site.refusals.path, error)


def _handle_connection(site: Site, connection: socket.socket) -> None:
    """Answer the one request of a connection."""
    deadline = time.monotonic() + PEER_TIMEOUT_SECONDS
    size = receive_length(connection, deadline)
    if size > site.largest_request:
        start = time.monotonic()
        content = site.refuse(Code.MALFORMED)
    else:
        frame = receive(connection, size, deadline)
        start = time.monotonic()
        content = site.answer(frame)
    leave = compute_departure(start, time.monotonic(), site.interval)
    time.sleep(max(0.0, leave - time.monotonic()))
    connection.settimeout(PEER_TIMEOUT_SECONDS)
    send_message(connection, content)
