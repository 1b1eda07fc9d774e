"""How often a site has refused, by code, kept in a file for its owner."""

import json
from collections import Counter
from pathlib import Path

from pacdp.federation.wire import Code
from pacdp.storage import write_atomically

MEANINGS = {
    Code.MALFORMED: "It was no message of the known form, or too long.",
    Code.SIGNATURE: "The coordinator had not signed it.",
    Code.RUN: "It belonged to another run.",
    Code.PLAN: "It belonged to another plan than the accepted one.",
    Code.ROUND: "There is no such round.",
    Code.PARTICIPANT: "This client does not take part in the round.",
    Code.WEIGHTS: "The weights were not those of the model, or a number was not finite.",
    Code.STATE: "The method's state was unusable.",
    Code.ANSWERED: "The round was debited for another message before.",
    Code.LOST: "The reply to the round is gone, or computing it has failed.",
    Code.BUDGET: "The plan or the budget is used up, or the ledger is an older copy.",
    Code.BUSY: "Something failed here, such as a full disk; asking again is allowed.",
}
"""Why a site refuses, for its owner."""


class RefusalCounts:
    """Counts that survive a restart. They are for information: nothing depends on them.

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
            # Not there yet, or damaged: counting starts again.
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
        """Write the counts, if there are new ones."""
        if self._changed:
            content = json.dumps(self.by_code, sort_keys=True) + "\n"
            write_atomically(self.path, content, private=True)
            self._changed = False
