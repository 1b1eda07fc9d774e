"""The binary format of all messages.

=================  ==================================================================
``PACDP``          5 bytes
version            1 byte: 1
kind               1 byte: 1 a broadcast, 2 a reply, 3 a refusal
length of header   4 bytes, big-endian
header             canonical JSON: sorted keys, no spaces, UTF-8
payload            tensors; the header has its length
signature          64 bytes (Ed25519), over everything before it
=================  ==================================================================
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pacdp import __version__
from pacdp.errors import InputError, PacdpError
from pacdp.federation.plan import Plan
from pacdp.keys import Sign, Verify

MAGIC, VERSION, SIGNATURE_BYTES = b"PACDP", 1, 64
_START = struct.Struct(">5sBBI")


class Kind(IntEnum):
    """The kinds of messages."""

    BROADCAST = 1
    REPLY = 2
    REFUSAL = 3


class Code(StrEnum):
    """The reasons for refusing a message or a round; a refusal reveals nothing else."""

    MALFORMED = "malformed"
    SIGNATURE = "signature"
    RUN = "run"
    PLAN = "plan"
    ROUND = "round"
    PARTICIPANT = "participant"
    WEIGHTS = "weights"
    STATE = "state"
    ANSWERED = "answered"
    BUDGET = "budget"
    BUSY = "busy"
    LOST = "lost"


class WireError(PacdpError):
    """A message was refused; the error contains only the code, nothing from the message.

    >>> str(WireError(Code.WEIGHTS))
    'message refused: weights'
    """

    def __init__(self, code: Code) -> None:
        super().__init__(f"message refused: {code}")
        self.code = code


@dataclass(frozen=True)
class Frame:
    """A message whose format and signature have been checked, but not its content."""

    header: dict[str, Any]
    payload: bytes


def canonical_json(value: Any) -> bytes:
    """Encode as canonical JSON: sorted keys, no spaces, UTF-8, finite numbers.

    >>> canonical_json({"round": 1, "client": 0})
    b'{"client":0,"round":1}'
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def plan_digest(plan: Plan, modules: Mapping[str, str] | None = None) -> str:
    """Return the SHA-256 of what the owner of a site accepts, in hexadecimal digits.

    It covers the plan, which includes the version of the arithmetic; the code of plug-ins, as the
    SHA-256 of each module's file; and the release series of pacdp, such as 0.3, within which
    releases only fix bugs.
    """
    series = ".".join(__version__.split(".")[:2])
    content = {
        "modules": dict(modules or {}),
        "pacdp": series,
        "plan": plan.model_dump(mode="json"),
    }
    return hashlib.sha256(canonical_json(content)).hexdigest()


def frame_digest(frame: bytes) -> str:
    """Return the SHA-256 of a frame without its signature, in hexadecimal digits.

    A message therefore keeps its digest when it is signed again with a new key.

    >>> frame_digest(b"message" + bytes(64)) == frame_digest(b"message" + b"." * 64)
    True
    """
    return hashlib.sha256(frame[:-SIGNATURE_BYTES]).hexdigest()


def replace_signature(frame: bytes, *, sign: Sign) -> bytes:
    """Return a frame with a new signature.

    >>> replace_signature(b"message" + bytes(64), sign=lambda message: b"." * 64)[:9]
    b'message..'
    """
    message = frame[:-SIGNATURE_BYTES]
    return message + sign(message)


def write_frame(kind: Kind, header: Mapping[str, Any], payload: bytes, *, sign: Sign) -> bytes:
    """Encode and sign a message.

    >>> frame = write_frame(Kind.REFUSAL, {"code": "busy"}, b"", sign=lambda message: bytes(64))
    >>> frame[:11], len(frame)
    (b'PACDP\\x01\\x03\\x00\\x00\\x00\\x0f', 90)
    """
    text = canonical_json(header)
    message = _START.pack(MAGIC, VERSION, kind, len(text)) + text + payload
    signature = sign(message)
    if len(signature) != SIGNATURE_BYTES:
        raise InputError(f"signature: has {len(signature)} bytes, must have {SIGNATURE_BYTES}")
    return message + signature


def largest_frame(*, header: int, payload: int) -> int:
    """Return the size of a frame with a header and a payload of these sizes."""
    return _START.size + header + payload + SIGNATURE_BYTES


def frame_kind(frame: bytes) -> Kind:
    """Return the kind that a frame claims to have, without verifying its signature.

    >>> frame_kind(write_frame(Kind.REPLY, {}, b"", sign=lambda message: bytes(64))).name
    'REPLY'
    """
    return _read_start(frame)[0]


def read_frame(
    frame: bytes, kind: Kind, *, verify: Verify, largest_header: int, largest_payload: int
) -> Frame:
    """Check the format of a message and then its signature, and parse its header.

    A message that is too long or not signed is neither copied nor parsed.
    """
    if len(frame) > largest_frame(header=largest_header, payload=largest_payload):
        raise WireError(Code.MALFORMED)
    actual, header_bytes = _read_start(frame)
    payload_at, end = _START.size + header_bytes, len(frame) - SIGNATURE_BYTES
    fits = header_bytes <= largest_header and 0 <= end - payload_at <= largest_payload
    if actual is not kind or not fits:
        raise WireError(Code.MALFORMED)
    if not verify(frame[end:], frame[:end]):
        raise WireError(Code.SIGNATURE)
    return Frame(_parse_header(frame[_START.size : payload_at]), frame[payload_at:end])


def _read_start(frame: bytes) -> tuple[Kind, int]:
    """Return kind and length of the header."""
    if len(frame) < _START.size + SIGNATURE_BYTES:
        raise WireError(Code.MALFORMED)
    magic, version, kind, header_bytes = _START.unpack_from(frame)
    if magic != MAGIC or version != VERSION or kind not in list(Kind):
        raise WireError(Code.MALFORMED)
    return Kind(kind), header_bytes


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
        # It must be canonical: this refuses spaces, unsorted or duplicate keys, other spellings of
        # numbers, NaN, and invalid Unicode.
        if type(header) is dict and canonical_json(header) == text:
            return header
    except (ValueError, RecursionError):
        pass
    raise WireError(Code.MALFORMED)
