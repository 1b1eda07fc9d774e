"""The engines that compute a round's clients in this process, and which of them fits a plan.

Their numbers are the same, to rounding: noise belongs to a client, a round and a step, whoever
computes it. In each of them every client checks what was sent, pays from its own ledger before
anything is computed, and passes :class:`~pacdp.federation.release_guard.ReleaseGuard`.
"""

from collections.abc import Callable, Mapping
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

    def __init__(self, local_model: LocalModel, make: Callable[[], LocalModel]) -> None:
        """``make`` gives further models, for engines that need several."""

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """The reason why it cannot compute a plan; empty if it can."""

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Whether it is faster than those that come after it."""

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Each client's reply or refusal, by number, in their order."""


# In the order in which "auto" looks for one that fits.
ENGINES: dict[str, type[Engine]] = {
    kind.name: kind for kind in (StackedEngine, ThreadedEngine, SerialEngine)
}


def choose_engine(name: str, local_model: LocalModel, *, make: Callable[[], LocalModel]) -> Engine:
    """Return an engine by its name or as ``module:Class``, or with ``auto`` the fastest that fits.

    An engine that does not fit the plan is refused.
    """
    if name == "auto":
        fitting = [kind for kind in ENGINES.values() if not kind.explain_misfit(local_model)]
        return next(kind for kind in fitting if kind.is_preferred(local_model))(local_model, make)
    if is_path(name):
        kind: type[Engine] = import_object("engine", name)
    else:
        kind = ENGINES[require_member("engine", name, ("auto", *ENGINES))]
    if misfit := kind.explain_misfit(local_model):
        raise InputError(f"engine = {name}: {misfit}")
    return kind(local_model, make)
