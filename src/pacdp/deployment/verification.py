"""Verifying a federation: the ledgers, their stored replies, the run's log and the model agree."""

import hashlib
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pacdp.coordinator import Coordinator, CoordinatorSettings, RunLog
from pacdp.deployment.layout import FederationFolder
from pacdp.errors import DataError, PacdpError
from pacdp.federation import LocalModel, Plan
from pacdp.federation.wire import (
    Kind,
    ReceivedReply,
    Wire,
    WireError,
    frame_digest,
    frame_kind,
    plan_digest,
)
from pacdp.keys import read_public_key
from pacdp.plugins import import_pinned
from pacdp.privacy import SQLiteLedger
from pacdp.site import SiteSettings
from pacdp.site.head_file import HeadFile


class DisagreementError(PacdpError):
    """Two accounts of the same event differ."""


def verify_federation(folder: FederationFolder) -> dict[str, Any]:
    """Return a summary; raise DisagreementError at the first disagreement.

    Every reply in the coordinator's log must be byte-identical to the one that the site debited and
    stored; every ledger must be intact, up to date and within its budget; and the model must be the
    one that the log implies.
    """
    settings = folder.load_settings()
    coordinator = CoordinatorSettings.load_toml(folder.coordinator_settings)
    import_pinned(coordinator.modules)
    plan = Plan.load(coordinator.plan)
    digest = plan_digest(plan, coordinator.modules)
    with tempfile.TemporaryDirectory() as temporary:
        # A consistent snapshot, taken before the ledgers are read.
        snapshot = Path(temporary) / "run.db"
        original = coordinator.log
        started = original.is_file()
        if started:
            _copy_database(original, snapshot)
        coordinator = coordinator.model_copy(update={"log": snapshot})
        try:
            log = RunLog(snapshot, run=plan.run, digest=digest)
            sites = {
                name: _SiteCheck(folder, plan, number, coordinator).verify(log)
                for number, name in enumerate(settings.sites)
            }
            model = _verify_model(coordinator) if started else "not trained yet"
        except DisagreementError:
            raise
        except PacdpError as error:
            # The message names the log, not its snapshot.
            message = str(error).replace(str(snapshot), str(original))
            raise DisagreementError(message) from None
        closed = log.count_closed()
    return {
        "run": plan.run,
        "rounds": plan.rounds,
        "closed": closed,
        "model": model,
        "sites": sites,
    }


class _SiteCheck:
    """Compares the ledger of one site with the log."""

    def __init__(
        self, folder: FederationFolder, plan: Plan, number: int, coordinator: CoordinatorSettings
    ) -> None:
        self._plan, self._number = plan, number
        self._name = plan.clients[number].name
        self._settings = SiteSettings.load_toml(folder.site_settings(self._name))
        self._coordinator = coordinator
        self._wire = Wire.for_model(LocalModel(plan), modules=coordinator.modules)

    def verify(self, log: RunLog) -> dict[str, Any]:
        """Verify the site, and return its counts and spending."""
        ledger = self._read_ledger()
        debited = {
            key[1]: record for key, record in ledger.rounds.items() if key[0] == self._plan.run
        }
        each = self._plan.clients[self._number].each
        self._require(
            ledger.count_releases(self._plan.run).total() == each * len(debited),
            "the ledger has debits of this run that belong to none of its rounds",
        )
        heads = {entry.hash for entry in ledger.entries}
        delivered = 0
        for number in range(self._plan.rounds):
            sent, frame = log.find_broadcast(number), log.answers(number).get(self._number)
            record, where = debited.get(number), f"round {number + 1}"
            if record is not None:
                self._require(
                    sent is not None and record.request.broadcast == frame_digest(sent),
                    f"{where} was debited for a broadcast that the coordinator did not send",
                )
            if frame is None or sent is None or self._is_refusal(frame, where):
                continue
            delivered += 1
            self._require(record is not None, f"the reply to {where} was never debited")
            assert record is not None
            self._require(
                ledger.read_reply(record.request) == frame
                and record.reply == hashlib.sha256(frame).hexdigest(),
                f"the reply to {where} is not the one that the site stored",
            )
            head = self._decode(frame, sent, where).head
            self._require(
                head in heads and head == record.head,
                f"the reply to {where} contains a head other than that of its debit",
            )
        answered = sum(record.reply is not None for record in debited.values())
        state = ledger.filter
        return {
            "debited": len(debited),
            "answered": answered,
            "delivered": delivered,
            "budget": state.budget.to_dict(),
            "spent": state.charged.to_dict(),
        }

    def _read_ledger(self) -> SQLiteLedger:
        """Read the ledger, which verifies its chain, its replies and its budget."""
        settings, coordinator = self._settings, self._coordinator
        self._require(
            settings.accepted == self._wire.digest, "accepted a plan other than the run's"
        )
        self._require(
            read_public_key(coordinator.key) in settings.coordinator
            and read_public_key(settings.key) in coordinator.sites[self._name],
            "its key or the coordinator's is not among those that the other party has on file",
        )
        ledger = SQLiteLedger(settings.ledger, head=HeadFile(settings.head).read())
        self._require(ledger.client == self._name, "has the ledger of another client")
        return ledger

    def _is_refusal(self, frame: bytes, where: str) -> bool:
        try:
            return frame_kind(frame) is Kind.REFUSAL
        except WireError as error:
            raise DisagreementError(f"site {self._name}: {where}: {error}") from None

    def _decode(self, frame: bytes, sent: bytes, where: str) -> ReceivedReply:
        """Decode a reply, whose bytes are those that the site stored.

        Signatures were verified on arrival, with keys that may have been replaced since.
        """
        try:
            broadcast = self._wire.decode_broadcast(
                sent, client=self._number, verify=lambda *_: True
            )
            return self._wire.decode_reply(
                frame,
                client=self._number,
                broadcast=broadcast,
                broadcast_digest=frame_digest(sent),
                verify=lambda *_: True,
            )
        except WireError as error:
            raise DisagreementError(f"site {self._name}: {where}: {error}") from None

    def _require(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise DisagreementError(f"site {self._name}: {otherwise}")


def _verify_model(settings: CoordinatorSettings) -> str:
    """Recompute the model from the log, and compare it with the one in the results."""
    weights = Coordinator(settings).replay().weights
    assert weights is not None
    path = settings.results / "model.safetensors"
    if not path.is_file():
        return "recomputed; no results yet"
    try:
        written = load_file(path)
    except Exception as error:  # a damaged file can fail in any way
        raise DataError(f"{path}: is not a model ({error})") from None
    if not _equal(written, weights):
        raise DisagreementError(f"{path}: is not the model that the run's log implies")
    return "follows from the log"


def _equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return set(first) == set(second) and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def _copy_database(source: Path, target: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(target)) as copy,
        ):
            original.backup(copy)
    except sqlite3.Error as error:
        raise DisagreementError(f"{source}: cannot be read ({error})") from None
