"""Accepting a plan: the owner's decision, recorded in ``site.toml``."""

from dataclasses import dataclass
from pathlib import Path

from pacdp.errors import InputError
from pacdp.federation import Plan
from pacdp.federation.client import require_ledger
from pacdp.federation.wire import plan_digest
from pacdp.privacy import SQLiteLedger
from pacdp.site.agreement import describe_agreement
from pacdp.site.head_file import HeadFile
from pacdp.site.plans import find_client, read_plan
from pacdp.site.settings import SiteSettings, record_acceptance
from pacdp.storage import write_atomically


@dataclass(frozen=True)
class Proposal:
    """A plan that has been read and verified, and awaits the owner's decision."""

    toml: Path
    settings: SiteSettings
    plan: Plan
    ledger: SQLiteLedger

    @property
    def digest(self) -> str:
        """The hash that is recorded on acceptance."""
        return plan_digest(self.plan, self.settings.modules)

    def describe(self) -> dict[str, str]:
        """Return the terms of the plan by topic, in plain language."""
        number = find_client(self.plan, self.settings.client)
        return describe_agreement(self.plan, number, self.ledger, self.settings.modules)

    def accept(self) -> None:
        """Record the owner's acceptance; a running site uses the plan after a restart."""
        content = self.plan.model_dump_json(indent=2) + "\n"
        write_atomically(self.settings.plan, content, private=True)
        if not self.settings.head.exists():
            HeadFile(self.settings.head).write(self.ledger.head)
        record_acceptance(self.toml, self.digest)


def propose_plan(path: Path, toml: Path) -> Proposal:
    """Read a plan that was received, and refuse it if this site could not serve it."""
    settings = SiteSettings.load_toml(toml)
    plan = read_plan(path, settings)
    head = HeadFile(settings.head).read() if settings.head.exists() else None
    if head is None and not settings.head.parent.is_dir():
        raise InputError(f"{settings.head}: its folder does not exist")
    ledger = SQLiteLedger(settings.ledger, head=head)
    if head is None and ledger.rounds:
        # Raises: a new head file would hide that the old one was lost and the ledger is stale.
        HeadFile(settings.head).read()
    require_ledger(plan, find_client(plan, settings.client), ledger)
    return Proposal(toml, settings, plan, ledger)
