"""One client after the other, for any method and model, and for debugging."""

from collections.abc import Mapping

from pacdp.federation.client import Client
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Answers, Broadcast


class SerialEngine:
    """Computes one client at a time, each with all of torch's threads.

    Errors name the client, the round and the step.
    """

    name = "serial"

    def __init__(self, local_model: LocalModel) -> None:
        self._local_model = local_model

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """Return nothing: any plan can be computed."""
        return ""

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Return True: it is the last choice."""
        return True

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Compute each client's answer."""
        return {
            number: client.answer_or_refuse(broadcast, self._local_model)
            for number, client in clients.items()
        }
