"""Rounds that are debited and answered once, derived from the entries of a ledger.

A debit may contain the round that it pays for and the hash of the broadcast. A separate entry
contains the hash of the reply. The state of a round is derived from these entries alone, so a crash
at any time leaves one of three states: not debited, debited without a reply, or answered.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pacdp.errors import InputError
from pacdp.privacy.releases import Release
from pacdp.validation import require_string

if TYPE_CHECKING:
    from pacdp.privacy.sqlite_ledger import Entry


@dataclass(frozen=True)
class RoundRequest:
    """A round of a run, and the hash of the broadcast to be answered.

    >>> RoundRequest("first", 0, "no hash")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: broadcast: must be the 64 hexadecimal digits of a hash
    """

    run: str
    round: int
    broadcast: str

    def __post_init__(self) -> None:
        require_string("run", self.run)
        if type(self.round) is not int or not 0 <= self.round < 2**63:
            raise InputError("round: must be a whole number of at least 0")
        if not isinstance(self.broadcast, str) or not re.fullmatch("[0-9a-f]{64}", self.broadcast):
            raise InputError("broadcast: must be the 64 hexadecimal digits of a hash")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the entries of the round."""
        return {"run": self.run, "round": self.round, "broadcast": self.broadcast}

    def describe_debit(self) -> dict[str, Any]:
        """Return plain values for the entry of the debit, with a secret salt.

        A reply contains the head after its debit. Without the salt, the recipient could find the
        times of this and earlier entries by brute force, since it knows the rest of their content,
        and thus learn how long the answers took.
        """
        return self.to_dict() | {"salt": secrets.token_hex(16)}


@dataclass(frozen=True)
class RoundRecord:
    """A round that was debited."""

    request: RoundRequest
    releases: tuple[Release, ...]
    """What was debited."""
    sequence: int
    """The first entry of the debit."""
    head: str
    """The hash of the last entry of the debit."""
    reply: str | None = None
    """The hash of the reply; None if there is none yet."""


Rounds = Mapping[tuple[str, int], RoundRecord]


def collect_rounds(entries: Sequence["Entry"]) -> Rounds:
    """Return every debited round, by run and round; raise InputError for contradictions."""
    rounds: dict[tuple[str, int], RoundRecord] = {}
    for entry in entries:
        if "round" not in entry.content or entry.kind not in ("release", "reply"):
            continue
        request = RoundRequest(*(entry.content[name] for name in ("run", "round", "broadcast")))
        key = (request.run, request.round)
        known = rounds.get(key)
        if (known is None and entry.kind == "reply") or (
            known is not None and (known.request != request or known.reply is not None)
        ):
            raise InputError(f"entry {entry.sequence} contradicts an earlier entry of its round")
        if entry.kind == "reply":
            assert known is not None
            rounds[key] = replace(known, reply=require_string("reply", entry.content["reply"]))
        else:
            before = known or RoundRecord(request, (), entry.sequence, entry.hash)
            releases = (*before.releases, entry.release)
            rounds[key] = replace(before, releases=releases, head=entry.hash)
    return rounds
