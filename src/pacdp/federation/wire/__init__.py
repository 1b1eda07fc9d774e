"""Messages as bytes: versioned, signed, and fully validated.

Input is untrusted. A decoder allocates no more than the plan's sizes require, and refuses invalid
messages with one of a few fixed codes.
"""

from pacdp.federation.wire.codec import ReceivedReply, Wire
from pacdp.federation.wire.frames import (
    SIGNATURE_BYTES,
    Code,
    Kind,
    WireError,
    frame_digest,
    frame_kind,
    plan_digest,
    replace_signature,
)

__all__ = [
    "SIGNATURE_BYTES",
    "Code",
    "Kind",
    "ReceivedReply",
    "Wire",
    "WireError",
    "frame_digest",
    "frame_kind",
    "plan_digest",
    "replace_signature",
]
