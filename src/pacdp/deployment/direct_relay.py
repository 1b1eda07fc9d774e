"""A relay without Flower, for trials on one machine: it connects the coordinator and the sites.

Like Flower's apps, it only moves bytes and is not trusted. Each site is asked in a separate thread,
because a site answers only after a fixed interval.
"""

import sys
import threading
import time
from pathlib import Path

from pacdp.relay_protocol import RelayRequest, RoundState
from pacdp.sockets import ask

# Seconds between polls of the coordinator, and before a site is asked again.
_POLL_SECONDS, _RETRY_SECONDS = 0.1, 1.0
# A site trains before it answers, and then waits for its interval to elapse.
_SITE_TIMEOUT_SECONDS = 3600.0
_COORDINATOR_TIMEOUT_SECONDS = 60.0


class DirectRelay:
    """Carries broadcasts to the sites and their answers back, until the run has ended."""

    def __init__(self, coordinator: Path, sites: dict[str, Path]) -> None:
        self._coordinator, self._sites = coordinator, sites
        self._round: int | None = None
        self._frame = b""
        self._threads: dict[str, threading.Thread] = {}
        self._outcome: str | None = None

    def run(self) -> str:
        """Relay until the run is over, and return its outcome: ``ended`` or ``failed``."""
        while self._outcome is None:
            try:
                current, frame = self._call_coordinator(RelayRequest(self._round))
            except (OSError, ValueError):
                # The coordinator is starting, or was killed and is being restarted.
                time.sleep(_POLL_SECONDS)
                continue
            if frame:
                self._round, self._frame = current.round, frame
            if current.state == "open" and current.round == self._round:
                for name in current.sites:
                    self._start_asking(name)
            time.sleep(_POLL_SECONDS)
        return self._outcome

    def _start_asking(self, name: str) -> None:
        """Ask a site in the background, unless a request to it is already pending."""
        if name not in self._sites or (name in self._threads and self._threads[name].is_alive()):
            return
        self._threads[name] = threading.Thread(
            target=self._ask, args=(name, self._round, self._frame), daemon=True
        )
        self._threads[name].start()

    def _ask(self, name: str, number: int | None, frame: bytes) -> None:
        try:
            answer = ask(self._sites[name], frame, timeout=_SITE_TIMEOUT_SECONDS)
            current, _ = self._call_coordinator(RelayRequest(number, name, answer))
        except (OSError, ValueError):
            # The site or the coordinator is down. Sending the same frame again costs nothing.
            time.sleep(_RETRY_SECONDS)
            return
        if current.round == number and name in current.sites:
            # The answer was not accepted: the site was busy.
            time.sleep(_RETRY_SECONDS)

    def _call_coordinator(self, request: RelayRequest) -> tuple[RoundState, bytes]:
        message = ask(self._coordinator, request.encode(), timeout=_COORDINATOR_TIMEOUT_SECONDS)
        current, frame = RoundState.decode(message)
        if current.state in ("ended", "failed"):
            # The coordinator announces the outcome only once, to whichever request comes next.
            self._outcome = current.state
        return current, frame


def main() -> None:
    """Relay between the coordinator and the sites, whose names and sockets are the arguments."""
    coordinator, *pairs = sys.argv[1:]
    sites = {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}
    DirectRelay(Path(coordinator), sites).run()


if __name__ == "__main__":
    main()
