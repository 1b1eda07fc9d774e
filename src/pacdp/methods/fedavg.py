"""FedAvg without privacy: the ceiling."""

from typing import ClassVar

from pacdp.methods.base import Method, Tensors, Work


class FedAvg(Method):
    """No clipping, no noise, no ledger, and no ε.

    >>> FedAvg().private
    False
    """

    name: ClassVar[str] = "fedavg"
    private: ClassVar[bool] = False

    def train(self, work: Work) -> Tensors:
        """Ordinary local training."""
        for batch in work.batches():
            work.step(work.plain_mean(batch))
        return work.update()
