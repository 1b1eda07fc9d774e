"""What a relay and the coordinator say to each other at the coordinator's socket.

There is one call. The relay hands in an answer of a site, or nothing, and gets the state of the
round, with the broadcast if it does not have it yet. Each side sends a JSON header after its length
(4 bytes, big-endian), and then bytes. A relay is trusted with nothing but delivery: broadcasts are
signed by the coordinator, answers by the sites.
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
    """What a relay says.

    >>> request = RelayRequest(round=3, site="north", answer=b"update")
    >>> RelayRequest.decode(request.encode()) == request
    True
    """

    round: int | None = None
    """The round whose broadcast the relay has."""
    site: str | None = None
    """The site whose answer this is, if there is one."""
    answer: bytes = b""

    def encode(self) -> bytes:
        """Return the message."""
        return _join({"round": self.round, "site": self.site}, self.answer)

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Read a message; anything else is an InputError."""
        header, answer = _split(message)
        number, site = header.get("round"), header.get("site")
        if set(header) != {"round", "site"} or type(number) not in (int, type(None)):
            raise InputError("relay: sends no request of the known form")
        if not isinstance(site, str | None):
            raise InputError("relay: sends no request of the known form")
        return cls(number, site, answer)


@dataclass(frozen=True)
class RoundState:
    """What the coordinator answers."""

    state: str
    """``open``; or ``ended`` or ``failed``, after which a relay has nothing more to do."""
    round: int
    sites: tuple[str, ...] = ()
    """The sites whose answers are still wanted."""
    seconds: float = 0.0
    """Seconds until the deadline."""

    def encode(self, broadcast: bytes = b"") -> bytes:
        """Return the message, with a broadcast for a relay that does not have it."""
        return _join(asdict(self), broadcast)

    @classmethod
    def decode(cls, message: bytes) -> tuple[Self, bytes]:
        """Read the state and the broadcast, as a relay does."""
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
        raise InputError("relay: sends no message of the known form") from None
    if not isinstance(header, dict):
        raise InputError("relay: sends no message of the known form")
    return header, message[end:]
