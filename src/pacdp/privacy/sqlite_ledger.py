"""A client's durable ledger: a file from which every release is debited before it is computed.

A release is debited and synced to disk before it is computed, and so before anything leaves the
client. A release that would exceed the budget is refused, and the message says what is left. The
file is a :class:`~pacdp.privacy.hash_chain.HashChain` of entries. The spent budget (a
:class:`~pacdp.privacy.filter.Filter`) is recomputed from the entries and never stored separately.
After a crash a debited release may be missing, but no debit is.

A site that answers a server debits each round once, for one broadcast, and stores its reply in the
same file (:mod:`pacdp.privacy.rounds`); it sends only bytes that are stored there.

Several runs may use one ledger. No server can raise the budget: only
:meth:`SQLiteLedger.set_budget` changes it, and this is recorded as an entry, too.

>>> import tempfile, pathlib
>>> from pacdp.privacy import Adjacency, Guarantee, Release, SQLiteLedger, calibrate
>>> path = pathlib.Path(tempfile.mkdtemp()) / "hospital.ledger"
>>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
>>> ledger = SQLiteLedger.create(path, client="hospital", budget=budget)
>>> plan = calibrate(epsilon=0.5, releases=13).release()
>>> for participation in range(13):
...     entries = ledger.reserve(plan.times(1), run="first")  # computed and sent only after this
>>> print(ledger.filter.realised)
ε = 0.5 at δ = 1e-05, zero-out (exact)
>>> ledger.reserve(plan.times(1), run="first")
Traceback (most recent call last):
...
pacdp.errors.BudgetExceededError: ...hospital.ledger: would reach ε = 0.52... left: 0 releases ...
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from pacdp.errors import BudgetExceededError, InputError, LedgerError, StaleLedgerError
from pacdp.privacy.filter import Filter, Tally
from pacdp.privacy.guarantee import Adjacency, Guarantee
from pacdp.privacy.hash_chain import HashChain, Link
from pacdp.privacy.ledger import refuse_excess
from pacdp.privacy.releases import Release
from pacdp.privacy.reply_table import StoredReply
from pacdp.privacy.rounds import RoundRecord, RoundRequest, Rounds, collect_rounds
from pacdp.validation import require_budget as checked_budget
from pacdp.validation import require_name, require_scalar, require_string

_RELEASE_FIELDS = [field.name for field in fields(Release)]


@dataclass(frozen=True)
class Entry:
    """One entry of a ledger, with its position in the hash chain."""

    sequence: int
    hash: str
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """``open``, ``release``, ``freeze``, ``budget`` or ``reply``."""
        return str(self.content["kind"])

    @cached_property
    def release(self) -> Release:
        """The releases recorded by a ``release`` or ``freeze`` entry."""
        # The first ledgers have no unit: theirs is the record. Only some releases have levels.
        content = {"unit": "record", "levels": (), **self.content}
        return Release(**{name: content[name] for name in _RELEASE_FIELDS})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and CSV."""
        return {"sequence": self.sequence, **self.content, "hash": self.hash}


class SQLiteLedger:
    """A budget and everything debited from it, in one file."""

    durable = True

    def __init__(self, path: Path | str, *, head: str | None = None) -> None:
        """Open and verify the file.

        ``head`` is the hash of an earlier entry, stored outside of the ledger. A file without that
        entry is refused, which detects that an older copy was restored.
        """
        self._chain = HashChain(Path(path))
        # Threads may share a ledger: the state in memory follows the file in one step.
        self._lock = threading.Lock()
        links = self._chain.read(self._check_replies)
        if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
            raise InputError(f"head = {head!r}: must be the 64 hexadecimal digits of an entry")
        if head is not None and head not in {link.hash for link in links}:
            raise StaleLedgerError(
                f"{path}: does not contain the entry {head}: an older or another copy; restore the "
                "newest one"
            )
        self._last = links[-1]
        self.entries = self._parse(links)
        self.client, self.filter = self._replay(self.entries)

    @classmethod
    def create(
        cls, path: Path | str, *, client: str, budget: Guarantee, levels: Sequence[float] = ()
    ) -> "SQLiteLedger":
        """Create a new ledger; raise LedgerError if the file exists.

        ``levels`` are the ε of the client's budget levels, if its records have budgets of their
        own; ``budget`` is then a cap on all of them.

        >>> import tempfile
        >>> from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
        >>> path = Path(tempfile.mkdtemp()) / "a.ledger"
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> SQLiteLedger.create(path, client="a", budget=budget).filter.budget == budget
        True
        """
        # Refuses an impossible budget before there is a file.
        state = Filter(budget, levels=tuple(levels))
        opening = {
            "client": require_name("client", client),
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "adjacency": budget.adjacency.value,
            "unit": budget.unit,
        } | ({"levels": state.levels} if state.levels else {})
        HashChain.create(Path(path), _body("open", opening))
        return cls(path)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._chain.path

    @property
    def head(self) -> str:
        """The hash of the newest entry; store it elsewhere to detect a restored older copy."""
        return self._last.hash

    def reserve(
        self,
        *releases: Release,
        run: str,
        label: str = "",
        at_most: int | None = None,
        request: RoundRequest | None = None,
    ) -> list[Entry]:
        """Debit releases, all or none, and return once the debit is synced to disk.

        Compute the releases only after this returns. ``run`` names the training run they belong to;
        ``at_most`` is the maximum number of releases of that run. ``label`` marks releases whose ε
        does not cover the whole run, such as per-release scope. With a ``request`` the debit is for
        that round of the run, and refused if the round was debited before.
        """
        if not releases:
            raise InputError("releases: is empty; pass at least one release")
        if request is not None and request.run != run:
            raise InputError(f"run = {run!r}: must be the run of the request")
        asked = {} if request is None else request.describe_debit()

        def admit(entries: list[Entry]) -> None:
            if request is not None and (run, request.round) in self._collect_rounds(entries):
                raise LedgerError(f"{self.path}: round {request.round} of {run} is already debited")
            refuse_excess(releases, _count(entries, run), run=run, at_most=at_most)

        return self._append(
            lambda current: current.spend(*releases),
            [("release", _labels(run, label) | asked | r.to_dict()) for r in releases],
            admit,
            with_replies=request is not None,
        )

    def find_round(self, run: str, number: int) -> RoundRecord | None:
        """Return a round; None if it was not debited.

        >>> import tempfile
        >>> from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
        >>> path = Path(tempfile.mkdtemp()) / "a.ledger"
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> SQLiteLedger.create(path, client="a", budget=budget).find_round("first", 0) is None
        True
        """
        return self.rounds.get((run, number))

    @property
    def rounds(self) -> Rounds:
        """All rounds that were debited, by run and round."""
        return self._collect_rounds(self.entries)

    def store_reply(self, request: RoundRequest, content: bytes) -> bytes:
        """Store the reply to a debited round, once, and return the bytes as they are in the file.

        The bytes and the entry with their hash are committed together.
        """
        reply = StoredReply(**request.to_dict(), content=content)

        def admit(entries: list[Entry]) -> None:
            known = self._collect_rounds(entries).get((request.run, request.round))
            if known is None or known.request != request or known.reply is not None:
                raise LedgerError(
                    f"{self.path}: round {request.round} of {request.run} does not await this reply"
                )

        entry = ("reply", request.to_dict() | {"reply": reply.hash})
        self._append(lambda current: current, [entry], admit, reply=reply)
        if (stored := self.read_reply(request)) is None:
            raise LedgerError(f"{self.path}: lost the reply to round {request.round}")
        return stored

    def read_reply(self, request: RoundRequest) -> bytes | None:
        """Return the stored reply; None if its hash is not the one in its entry."""
        known = self.find_round(request.run, request.round)
        stored = self._chain.read_reply(request.run, request.round)
        if known is None or stored is None or known.request != request:
            return None
        return stored.content if _is_named(known, stored) else None

    def freeze(self, plan: Release, *, run: str, label: str = "") -> Entry:
        """Charge a Poisson-sampled plan as a whole, before anything is released.

        Its releases are then reserved one by one as they are made, at no further cost.

        >>> import tempfile
        >>> from pacdp.privacy import Adjacency, Guarantee, Release, SQLiteLedger
        >>> path = Path(tempfile.mkdtemp()) / "a.ledger"
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> ledger = SQLiteLedger.create(path, client="a", budget=budget)
        >>> plan = Release.clipped_sum(
        ...     noise_multiplier=10, count=9, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
        ... )
        >>> ledger.freeze(plan, run="sampled").kind
        'freeze'
        """
        content = _labels(run, label) | plan.to_dict()
        return self._append(lambda current: current.freeze(plan), [("freeze", content)])[0]

    def count_releases(self, run: str) -> Tally:
        """Count the releases that the run has made so far.

        >>> import tempfile
        >>> from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
        >>> path = Path(tempfile.mkdtemp()) / "a.ledger"
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> SQLiteLedger.create(path, client="a", budget=budget).count_releases("first").total()
        0
        """
        return _count(self.entries, run)

    def set_budget(self, epsilon: float, *, reason: str = "", level: int | None = None) -> Entry:
        """Change ε, to no less than what is charged already; δ and adjacency never change.

        With a ``level`` (from 0), change the ε of that budget level instead of the cap on all.

        >>> import tempfile
        >>> from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
        >>> path = Path(tempfile.mkdtemp()) / "a.ledger"
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> ledger = SQLiteLedger.create(path, client="a", budget=budget)
        >>> ledger.set_budget(0.8, reason="requested by the board").content["epsilon"]
        0.8
        """
        # A plain float, whatever number was given: JSON knows no NumPy types.
        epsilon = require_scalar("epsilon", checked_budget("epsilon", epsilon))
        content: dict[str, Any] = {"epsilon": epsilon, "reason": require_string("reason", reason)}
        if level is not None:
            content["level"] = level
        return self._append(
            lambda current: current.rebudget(epsilon, level=level), [("budget", content)]
        )[0]

    def _append(
        self,
        change: Callable[[Filter], Filter],
        contents: Sequence[tuple[str, dict[str, Any]]],
        admit: Callable[[list[Entry]], None] = lambda entries: None,
        *,
        reply: StoredReply | None = None,
        with_replies: bool = False,
    ) -> list[Entry]:
        """Append entries if the state in the file, not the one in memory, admits the change."""

        def decide(missed: Sequence[Link]) -> list[str]:
            new = self._parse(missed)
            admit(self.entries + new)
            change(self._advance(new, self.filter))
            return [_body(kind, content) for kind, content in contents]

        with self._lock:
            try:
                links = self._chain.append(
                    self._last, decide, reply=reply, with_replies=with_replies
                )
            except BudgetExceededError as error:
                raise BudgetExceededError(f"{self.path}: {error}") from None
            new = self._parse(links)
            self.filter = self._advance(new, self.filter)
            self.entries += new
            self._last = links[-1]
            return new[-len(contents) :]

    def _damaged(self, reason: str) -> LedgerError:
        return LedgerError(f"{self.path}: is damaged: {reason}")

    def _collect_rounds(self, entries: Sequence[Entry]) -> Rounds:
        try:
            return collect_rounds(entries)
        except (KeyError, TypeError, InputError) as error:
            raise self._damaged(str(error)) from None

    def _check_replies(self, links: Sequence[Link], replies: Iterator[StoredReply]) -> None:
        """Refuse replies without a matching entry; a missing reply is lost, but does no harm."""
        rounds = self._collect_rounds(self._parse(links))
        for reply in replies:
            known = rounds.get((reply.run, reply.round))
            if known is None or not _is_named(known, reply):
                raise self._damaged(f"the reply to round {reply.round} does not match its entry")

    def _parse(self, links: Sequence[Link]) -> list[Entry]:
        entries = []
        for link in links:
            try:
                content = json.loads(link.body)
                if not {"kind", "time"} <= set(content):
                    raise ValueError
            except (ValueError, TypeError):
                raise self._damaged(f"entry {link.sequence} is not readable") from None
            entries.append(Entry(link.sequence, link.hash, content))
        return entries

    def _replay(self, entries: Sequence[Entry]) -> tuple[str, Filter]:
        """Recompute the client's name and the state from all entries."""
        opening = entries[0].content
        try:
            client = str(opening["client"])
            budget = Guarantee(
                epsilon=opening["epsilon"],
                delta=opening["delta"],
                adjacency=Adjacency.parse(opening["adjacency"]),
                unit=opening.get("unit", "record"),
            )
            state = Filter(budget, levels=tuple(opening.get("levels", ())))
        except (KeyError, TypeError, InputError) as error:
            raise self._damaged(f"entry 1: {error}") from None
        state = self._advance(entries[1:], state)
        if not state.within_budget:
            raise LedgerError(
                f"{self.path}: is overspent: {state.charged} charged of {state.budget}; "
                "nothing more may be released under it"
            )
        return client, state

    def _advance(self, entries: Sequence[Entry], state: Filter) -> Filter:
        """Return the state after further entries, which were checked when they were written."""
        for kind, group in groupby(entries, key=lambda entry: entry.kind):
            same = list(group)
            try:
                if kind == "release":
                    state = state.record(*(entry.release for entry in same))
                elif kind == "freeze":
                    for entry in same:
                        state = state.freeze(entry.release)
                elif kind == "budget":
                    for entry in same:
                        state = state.rebudget(
                            entry.content["epsilon"], level=entry.content.get("level")
                        )
                elif kind != "reply":
                    raise InputError(f"kind = {kind!r}: is unknown")
            except (KeyError, TypeError, InputError, BudgetExceededError) as error:
                first, last = same[0].sequence, same[-1].sequence
                raise self._damaged(f"entries {first} to {last}: {error}") from None
        return state


def _count(entries: Sequence[Entry], run: str) -> Tally:
    """Count the releases of a run among the entries."""
    tally: Tally = Counter()
    for entry in entries:
        if entry.kind == "release" and entry.content.get("run") == run:
            tally[entry.release.times(1)] += entry.release.count
    return tally


def _is_named(known: RoundRecord, reply: StoredReply) -> bool:
    return (known.request.broadcast, known.reply) == (reply.broadcast, reply.hash)


def _labels(run: str, label: str) -> dict[str, Any]:
    return {"run": require_string("run", run), "label": require_string("label", label)}


def _body(kind: str, content: dict[str, Any]) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"kind": kind, "time": time, **content}, allow_nan=False, ensure_ascii=False)
