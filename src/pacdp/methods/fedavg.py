"""FedAvg without privacy: the ceiling."""

from typing import ClassVar

from pacdp.methods.base import Answer, Charge, Method, Terms, Work


class FedAvg(Method):
    """No clipping, no noise, no ledger, and no ε.

    >>> FedAvg().private
    False
    """

    name: ClassVar[str] = "fedavg"
    private: ClassVar[bool] = False

    def charges(self, terms: Terms) -> list[Charge]:
        """None: nothing is noised."""
        return []

    def train(self, work: Work) -> Answer:
        """Ordinary local training."""
        for batch in work.batches():
            work.step(work.plain_mean(batch))
        return Answer(work.update())
