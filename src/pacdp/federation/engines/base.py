"""The engines that compute a round's clients in this process, and which of them fits a plan.

Their numbers are the same, to rounding: noise belongs to a client, a round and a step, whoever
computes it. In each of them every client checks what was sent, pays from its own ledger before
anything is computed, and passes :class:`~pacdp.federation.release_guard.ReleaseGuard`.
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import torch

from pacdp.errors import InputError
from pacdp.federation.client import Client
from pacdp.federation.engines.serial import SerialEngine
from pacdp.federation.engines.stacked import StackedEngine, explain_no_stack, is_worth_stacking
from pacdp.federation.engines.threaded import ThreadedEngine
from pacdp.federation.local_model import Workbench
from pacdp.federation.messages import Answers, Broadcast
from pacdp.validation import member

EngineName = Literal["auto", "stacked", "threads", "one-by-one"]
ENGINES = ("auto", "stacked", "threads", "one-by-one")


class Engine(Protocol):
    """Computes the answers of a round's clients."""

    name: str

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Each client's reply or refusal, by number, in their order."""


def choose_engine(name: str, bench: Workbench, *, make: Callable[[], Workbench]) -> Engine:
    """Return the engine of that name, or with ``auto`` the fastest that fits the plan.

    Linear models are stacked, small convolutional ones run on several cores, and all others one by
    one. An engine that does not fit is refused.
    """
    member("engine", name, ENGINES)
    why_not_stacked = explain_no_stack(bench)
    chain = bench.gradient.sequential is not None
    if name == "stacked" and why_not_stacked:
        raise InputError(f"engine = stacked: {why_not_stacked}")
    if name == "threads" and not chain:
        raise InputError(
            "engine = threads: the model may draw random numbers; must be a Sequential of Linear, "
            "Conv2d, ReLU, Tanh, MaxPool2d and Flatten"
        )
    linear = is_worth_stacking(bench)
    if name == "stacked" or (name == "auto" and not why_not_stacked and linear):
        return StackedEngine(bench)
    several = torch.device(bench.device).type == "cpu" and torch.get_num_threads() > 1
    if name == "threads" or (name == "auto" and chain and several and not linear):
        return ThreadedEngine(make)
    return SerialEngine(bench)
