"""The engines that compute a round's clients in this process, and the choice among them.

All engines give the same numbers up to rounding, because noise belongs to a client, a round and a
step. In each of them every client checks the broadcast, pays from its ledger before anything is
computed, and passes :class:`~pacdp.federation.release_guard.ReleaseGuard`.
"""

from collections.abc import Mapping
from typing import Protocol

from pacdp.errors import InputError
from pacdp.federation.client import Client
from pacdp.federation.engines.serial import SerialEngine
from pacdp.federation.engines.stacked import StackedEngine
from pacdp.federation.engines.threaded import ThreadedEngine
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Answers, Broadcast
from pacdp.plugins import import_object, is_path
from pacdp.validation import require_member


class Engine(Protocol):
    """Computes the answers of a round's clients."""

    name: str

    def __init__(self, local_model: LocalModel) -> None:
        """Use this model; ``local_model.rebuild()`` gives further ones."""

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """Return why the engine cannot compute a plan; empty if it can."""

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Whether it is faster than the engines that follow it in ``ENGINES``."""

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Compute each client's reply or refusal, by number, in their order."""


# In the order in which "auto" looks for one that fits.
ENGINES: dict[str, type[Engine]] = {
    kind.name: kind for kind in (StackedEngine, ThreadedEngine, SerialEngine)
}


def choose_engine(name: str, local_model: LocalModel) -> Engine:
    """Return an engine by its name or as ``module:Class``, or with ``auto`` the fastest that fits.

    An engine that does not fit the plan is refused.
    """
    if name == "auto":
        fitting = [kind for kind in ENGINES.values() if not kind.explain_misfit(local_model)]
        return next(kind for kind in fitting if kind.is_preferred(local_model))(local_model)
    if is_path(name):
        kind: type[Engine] = import_object("engine", name)
    else:
        kind = ENGINES[require_member("engine", name, ("auto", *ENGINES))]
    if misfit := kind.explain_misfit(local_model):
        raise InputError(f"engine = {name}: {misfit}")
    return kind(local_model)
