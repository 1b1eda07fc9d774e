"""What a site needs of the encoding of messages: bytes to broadcasts, replies to bytes.

A codec checks the form and the signature of what arrives, and that it is of the accepted run and
plan. The site checks the rest, whatever the codec has checked already.
"""

import hashlib
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from pacdp.errors import PacdpError
from pacdp.federation import LocalModel, Plan
from pacdp.federation.messages import Broadcast, Reply

Sign = Callable[[bytes], bytes]
"""Returns the signature of a message."""
Verify = Callable[[bytes, bytes], bool]
"""Whether a signature (the first argument) is that of a message (the second)."""


class Code(StrEnum):
    """The reasons for which a message or a round is refused. Nothing else is ever said."""

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
    """A message was refused; the code says why, and shows nothing of it.

    >>> str(WireError(Code.WEIGHTS))
    'message refused: weights'
    """

    def __init__(self, code: Code) -> None:
        super().__init__(f"message refused: {code}")
        self.code = code


class Codec(Protocol):
    """Encodes and decodes the messages of one plan."""

    @property
    def largest_broadcast(self) -> int:
        """The most bytes that a broadcast can have; more are not read."""

    def decode_broadcast(self, frame: bytes, *, client: int, verify: Verify) -> Broadcast:
        """Read a broadcast of the accepted run and plan, or raise WireError."""

    def encode_reply(
        self, reply: Reply, *, broadcast: Broadcast, asked: str, head: str, sign: Sign
    ) -> bytes:
        """Write a reply to a broadcast, whose frame has the digest ``asked``."""

    def encode_refusal(
        self,
        code: Code,
        *,
        client: int,
        round: int | None,  # noqa: A002
        sign: Sign,
    ) -> bytes:
        """Write a refusal; without a round if what was asked is of none."""


# Makes the codec of a plan's model.
CodecFactory = Callable[[LocalModel], Codec]


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of the plan's canonical JSON, in hexadecimal digits."""
    content = json.dumps(
        plan.model_dump(mode="json"),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(content.encode()).hexdigest()


def frame_digest(frame: bytes) -> str:
    """Return the SHA-256 of a whole frame, in hexadecimal digits.

    >>> len(frame_digest(b""))
    64
    """
    return hashlib.sha256(frame).hexdigest()
