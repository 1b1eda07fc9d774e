"""One client after the other: the plain way, for any method and any model, and for debugging."""

from collections.abc import Callable, Mapping

from pacdp.errors import BudgetExceededError
from pacdp.federation.client import Client
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Answers, Broadcast, Refusal, Reply


class SerialEngine:
    """Computes one client at a time, each with all of torch's threads.

    Errors name the client, the round and the step.
    """

    name = "serial"

    def __init__(
        self, local_model: LocalModel, make: Callable[[], LocalModel] | None = None
    ) -> None:
        self._local_model = local_model

    @classmethod
    def explain_misfit(cls, local_model: LocalModel) -> str:
        """Nothing: it can compute any plan."""
        return ""

    @classmethod
    def is_preferred(cls, local_model: LocalModel) -> bool:
        """Always, where no faster engine fits."""
        return True

    def answer(self, clients: Mapping[int, Client], broadcast: Broadcast) -> Answers:
        """Each client's answer."""
        return {
            number: answer_or_refuse(number, client, broadcast, self._local_model)
            for number, client in clients.items()
        }


def answer_or_refuse(
    number: int, client: Client, broadcast: Broadcast, local_model: LocalModel
) -> Reply | Refusal:
    """The client's reply, or its refusal where its plan or budget is used up."""
    try:
        return client.answer(broadcast, local_model=local_model)
    except BudgetExceededError as error:
        return Refusal(number, str(error))
