"""How the clients of a round are computed: together, on several cores, or one by one.

The numbers are the same, to rounding: noise belongs to a client, a round and a step, whoever
computes it. Every client checks what was sent and pays from its own book first, in each of them.
"""

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch

from pacdp.errors import BudgetExceededError, InputError
from pacdp.federation.client import Client
from pacdp.federation.engines.stacked import Stack, cannot_stack, worth_stacking
from pacdp.federation.engines.threaded import on_threads
from pacdp.federation.local_model import Workbench
from pacdp.federation.messages import Broadcast, Reply
from pacdp.validation import member

EngineName = Literal["auto", "stacked", "threads", "one-by-one"]
ENGINES = ("auto", "stacked", "threads", "one-by-one")

# What each client of a round did: answered, or refused.
Outcomes = Mapping[int, Reply | BudgetExceededError]


class Engine(Protocol):
    """Computes the answers of a round's clients."""

    name: str

    def round(self, clients: Sequence[Client], broadcast: Broadcast) -> Outcomes:
        """What each of them did, by number, in their order."""


class OneByOne:
    """One client after the other, each with all of torch's threads: the plain way.

    Any method and any model. What goes wrong names client, round and step.
    """

    name = "one-by-one"

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def round(self, clients: Sequence[Client], broadcast: Broadcast) -> Outcomes:
        """Each client's answer."""
        return {client.number: _answer(client, broadcast, self._bench) for client in clients}


class Threads:
    """As many clients at once as torch has threads, each on a model of its own.

    A step of a small model cannot keep two cores busy; two steps of two clients can. For models
    whose layers draw no random numbers: torch's generator is one for all threads.
    """

    name = "threads"

    def __init__(self, make: Callable[[], Workbench]) -> None:
        self._benches: queue.SimpleQueue[Workbench] = queue.SimpleQueue()
        benches = [make() for _ in range(torch.get_num_threads())]
        first = [next(iter(bench.parameters.values())) for bench in benches]
        if len({value.data_ptr() for value in first}) < len(first):
            raise InputError("make: gives the same model again; must give a new one each time")
        for bench in benches:
            self._benches.put(bench)

    def round(self, clients: Sequence[Client], broadcast: Broadcast) -> Outcomes:
        """Each client's answer."""

        def answer(client: Client) -> Reply | BudgetExceededError:
            bench = self._benches.get()
            try:
                return _answer(client, broadcast, bench)
            finally:
                self._benches.put(bench)

        found = on_threads(answer, clients)
        return {client.number: one for client, one in zip(clients, found, strict=True)}


def choose_engine(name: str, bench: Workbench, *, make: Callable[[], Workbench]) -> Engine:
    """The engine of that name, or with ``auto`` the fastest that fits; a bad fit is refused.

    Linear models are computed together, small convolutional ones on several cores, and all others
    one by one.
    """
    member("engine", name, ENGINES)
    why_not_stacked = cannot_stack(bench)
    chain = bench.gradient.chain is not None
    if name == "stacked" and why_not_stacked:
        raise InputError(f"engine = stacked: {why_not_stacked}")
    if name == "threads" and not chain:
        raise InputError(
            "engine = threads: the model may draw random numbers; must be a Sequential of Linear, "
            "Conv2d, ReLU, Tanh, MaxPool2d and Flatten"
        )
    if name == "stacked" or (name == "auto" and not why_not_stacked and worth_stacking(bench)):
        return Stack(bench)
    several = torch.device(bench.device).type == "cpu" and torch.get_num_threads() > 1
    if name == "threads" or (name == "auto" and chain and several and not worth_stacking(bench)):
        return Threads(make)
    return OneByOne(bench)


def _answer(client: Client, broadcast: Broadcast, bench: Workbench) -> Reply | BudgetExceededError:
    try:
        return client.answer(broadcast, workbench=bench)
    except BudgetExceededError as error:
        return error
