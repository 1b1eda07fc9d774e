"""Several clients at once, one on each core."""

import queue
from collections.abc import Mapping

import torch

from pacdp.errors import InputError
from pacdp.federation.client import Client
from pacdp.federation.engines.stacked import StackedEngine
from pacdp.federation.engines.thread_pool import on_threads
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Answers, Broadcast, Refusal, Reply


class ThreadedEngine:
    """Computes as many clients at once as torch has threads, each with its own copy of the model.

    A step of a small model cannot keep two cores busy; steps of two clients can. Only for models
    whose layers draw no random numbers, because torch's generator is shared by all threads.
    """

    name = "threaded"

    def __init__(self, local_model: LocalModel) -> None:
        copies = [local_model.rebuild() for _ in range(torch.get_num_threads())]
        first = [next(iter(copy.parameters.values())) for copy in copies]
        if len({value.data_ptr() for value in first}) < len(first):
            raise InputError(
                "make_model: gives the same model again; must give a new one each time"
            )
        self._local_models: queue.SimpleQueue[LocalModel] = queue.SimpleQueue()
        for copy in copies:
            self._local_models.put(copy)

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """Return why a model cannot be trained on several threads; empty if it can."""
        if local_model.gradient.sequential is not None:
            return ""
        return (
            "the model may draw random numbers; must be a Sequential of Linear, Conv2d, ReLU, "
            "Tanh, MaxPool2d and Flatten"
        )

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Whether there are several cores, and a step takes longer than Python's overhead."""
        several = torch.device(local_model.device).type == "cpu" and torch.get_num_threads() > 1
        return several and not StackedEngine.is_preferred(local_model)

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Compute each client's answer."""

        def answer(client: Client) -> Reply | Refusal:
            local_model = self._local_models.get()
            try:
                return client.answer_or_refuse(broadcast, local_model)
            finally:
                self._local_models.put(local_model)

        answers = on_threads(answer, list(clients.values()))
        return dict(zip(clients, answers, strict=True))
