"""FedAvg without privacy: the ceiling."""

from typing import ClassVar

from pacdp.methods.base import Answer, CalibrationRequest, ClientContext, Method, ReleaseSpec


class FedAvg(Method):
    """No clipping, no noise, no ledger, and no ε.

    >>> FedAvg().private
    False
    """

    name: ClassVar[str] = "fedavg"
    private: ClassVar[bool] = False

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """None: nothing is noised."""
        return []

    def train(self, context: ClientContext) -> Answer:
        """Ordinary local training."""
        for batch in context.batches():
            context.step(context.plain_mean(batch))
        return Answer(context.update())
