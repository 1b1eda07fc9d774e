"""What a site needs of the encoding of messages: bytes to broadcasts, replies to bytes.

A codec checks the form and the signature of what arrives, and that it is of the accepted run and
plan. The site checks the rest, whatever the codec has checked already.
"""

from collections.abc import Callable
from typing import Protocol

from pacdp.federation import LocalModel
from pacdp.federation.messages import Broadcast, Reply
from pacdp.federation.wire import (
    Code,
    Wire,
    WireError,
    frame_digest,
    plan_digest,
)
from pacdp.keys import Sign, Verify

__all__ = [
    "Code",
    "Codec",
    "CodecFactory",
    "Sign",
    "Verify",
    "WireError",
    "frame_digest",
    "make_codec",
    "plan_digest",
]


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


def make_codec(local_model: LocalModel) -> Codec:
    """Return the codec of a plan's model: the package's own wire format."""
    return Wire.for_model(local_model)
