"""How often a site has refused requests, by code, in a file for its owner."""

import json
from collections import Counter
from pathlib import Path

from pacdp.federation.wire import Code
from pacdp.storage import write_atomically

MEANINGS = {
    Code.MALFORMED: "The message was not in the expected format, or too long.",
    Code.SIGNATURE: "The coordinator did not sign it.",
    Code.RUN: "It belonged to another run.",
    Code.PLAN: "It belonged to a plan other than the accepted one.",
    Code.ROUND: "There is no such round.",
    Code.PARTICIPANT: "This client does not take part in the round.",
    Code.WEIGHTS: "The weights did not match the model, or a value was not finite.",
    Code.STATE: "The method's state was invalid.",
    Code.ANSWERED: "The round was already debited for another message.",
    Code.LOST: "The reply to the round was lost or could not be computed.",
    Code.BUDGET: "The plan or the budget is exhausted, or the ledger is an older copy.",
    Code.BUSY: "The site had a temporary problem, such as a full disk; the server may retry.",
}
"""Explanations of the codes for the owner of a site."""


class RefusalCounts:
    """Counts that survive a restart. They are informational only.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "counts.json"
    >>> counts = RefusalCounts(path)
    >>> counts.add(Code.BUDGET)
    >>> counts.save()
    >>> dict(RefusalCounts(path).by_code)
    {'budget': 1}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_code: Counter[str] = Counter()
        self._changed = False
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known = {code: content[code] for code in map(str, Code) if code in content}
            self.by_code.update({code: n for code, n in known.items() if type(n) is int and n > 0})
        except (OSError, ValueError, TypeError, RecursionError):
            # The file does not exist yet, or is damaged: start from zero.
            self.by_code.clear()

    @classmethod
    def beside(cls, ledger: Path) -> "RefusalCounts":
        """Return the counts of the site with this ledger."""
        return cls(ledger.with_name(f"{ledger.name}.refusals.json"))

    def add(self, code: Code) -> None:
        """Count a refusal."""
        self.by_code[str(code)] += 1
        self._changed = True

    def save(self) -> None:
        """Write the counts, if they have changed."""
        if self._changed:
            content = json.dumps(self.by_code, sort_keys=True) + "\n"
            write_atomically(self.path, content, private=True)
            self._changed = False
