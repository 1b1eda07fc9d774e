"""A relay without Flower, for trials on one machine: from the coordinator's socket to the sites'.

It is what the apps of a transport are: it moves bytes, and is trusted with nothing. Every site is
asked in a thread of its own, because its answers leave at intervals.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pacdp.sockets import LENGTH, ask

# Seconds between two questions to the coordinator, and before a site is asked again.
_PAUSE, _RETRY = 0.1, 1.0
# Sites compute, and wait for their interval.
_PATIENCE = 3600.0


class DirectRelay:
    """Carries broadcasts to the sites and their answers back, until the run has ended."""

    def __init__(self, coordinator: Path, sites: dict[str, Path]) -> None:
        self._coordinator, self._sites = coordinator, sites
        self._round: int | None = None
        self._frame = b""
        self._busy: dict[str, threading.Thread] = {}
        self._end: str | None = None

    def run(self) -> str:
        """Return how the run has ended: ``ended`` or ``failed``."""
        while self._end is None:
            try:
                header, frame = self._call(self._round, None)
            except (OSError, ValueError):
                # The coordinator is starting, or was killed and starts again.
                time.sleep(_PAUSE)
                continue
            if frame:
                self._round, self._frame = header["round"], frame
            if header["state"] == "open" and header["round"] == self._round:
                for name in header["sites"]:
                    self._start(name)
            time.sleep(_PAUSE)
        return self._end

    def _start(self, name: str) -> None:
        """Ask a site, unless it is being asked."""
        if name not in self._sites or (name in self._busy and self._busy[name].is_alive()):
            return
        self._busy[name] = threading.Thread(
            target=self._ask, args=(name, self._round, self._frame), daemon=True
        )
        self._busy[name].start()

    def _ask(self, name: str, number: int | None, frame: bytes) -> None:
        try:
            answer = ask(self._sites[name], frame, timeout=_PATIENCE)
            header, _ = self._call(number, name, answer)
        except (OSError, ValueError):
            # One of both is not there. The same frame can be sent again at no cost.
            time.sleep(_RETRY)
            return
        if header["round"] == number and name in header["sites"]:
            # The answer did not count: the site was busy.
            time.sleep(_RETRY)

    def _call(
        self, number: int | None, site: str | None, answer: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        text = json.dumps({"round": number, "site": site}).encode()
        message = ask(self._coordinator, LENGTH.pack(len(text)) + text + answer, timeout=60.0)
        end = LENGTH.size + LENGTH.unpack(message[: LENGTH.size])[0]
        header = json.loads(message[LENGTH.size : end])
        if header["state"] in ("ended", "failed"):
            # The coordinator says so once, whoever asks.
            self._end = header["state"]
        return header, message[end:]


def main() -> None:
    """Relay between the coordinator and the sites, whose names and sockets are the arguments."""
    coordinator, *pairs = sys.argv[1:]
    sites = {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}
    DirectRelay(Path(coordinator), sites).run()


if __name__ == "__main__":
    main()
