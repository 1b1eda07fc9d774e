"""The protocol between a relay and the coordinator, spoken on the coordinator's socket.

There is a single call. The relay may submit the answer of a site, and receives the state of the
round, with the broadcast if it does not have it yet. Each message is a JSON header, preceded by its
length (4 bytes, big-endian) and followed by the answer or the broadcast. A relay is trusted with
nothing but delivery: broadcasts are signed by the coordinator, answers by the sites.
"""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Self

from pacdp.errors import InputError
from pacdp.sockets import LENGTH

LARGEST_HEADER = 4096


@dataclass(frozen=True)
class RelayRequest:
    """A request of a relay.

    >>> request = RelayRequest(round=3, site="north", answer=b"update")
    >>> RelayRequest.decode(request.encode()) == request
    True
    """

    round: int | None = None
    """The round whose broadcast the relay has."""
    site: str | None = None
    """The site that sent the answer, if there is one."""
    answer: bytes = b""

    def encode(self) -> bytes:
        """Encode the request."""
        return _join({"round": self.round, "site": self.site}, self.answer)

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Decode a request; raise InputError if it is malformed."""
        header, answer = _split(message)
        number, site = header.get("round"), header.get("site")
        if set(header) != {"round", "site"} or type(number) not in (int, type(None)):
            raise InputError("relay: sent a malformed request")
        if not isinstance(site, str | None):
            raise InputError("relay: sent a malformed request")
        return cls(number, site, answer)


@dataclass(frozen=True)
class RoundState:
    """The coordinator's response."""

    state: str
    """``open``, or the final state of the run: ``ended`` or ``failed``."""
    round: int
    sites: tuple[str, ...] = ()
    """The sites whose answers are still missing."""
    seconds: float = 0.0
    """Seconds until the deadline."""

    def encode(self, broadcast: bytes = b"") -> bytes:
        """Encode the response, with the broadcast for a relay that does not have it."""
        return _join(asdict(self), broadcast)

    @classmethod
    def decode(cls, message: bytes) -> tuple[Self, bytes]:
        """Decode the state and the broadcast, which may be empty."""
        header, broadcast = _split(message)
        return cls(**{**header, "sites": tuple(header["sites"])}), broadcast


def _join(header: dict[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text + payload


def _split(message: bytes) -> tuple[dict[str, Any], bytes]:
    start = LENGTH.size
    try:
        end = start + LENGTH.unpack(message[:start])[0]
        if end > len(message):
            raise ValueError("too short")
        header = json.loads(message[start:end])
    except (ValueError, RecursionError, UnicodeDecodeError, struct.error):
        raise InputError("relay: sent a malformed message") from None
    if not isinstance(header, dict):
        raise InputError("relay: sent a malformed message")
    return header, message[end:]
