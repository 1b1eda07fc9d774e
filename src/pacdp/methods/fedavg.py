"""FedAvg without privacy: the upper reference."""

from typing import ClassVar

from pacdp.methods.base import Answer, ClientContext, Method
from pacdp.methods.client_plan import CalibrationRequest, ReleaseSpec


class FedAvg(Method):
    """Federated averaging without clipping, noise, ledger or ε.

    >>> FedAvg().private
    False
    """

    name: ClassVar[str] = "fedavg"
    private: ClassVar[bool] = False

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return nothing: no noise is added."""
        return []

    def train(self, context: ClientContext) -> Answer:
        """Train without clipping or noise."""
        train_plainly(context)
        return Answer(context.update())


def train_plainly(context: ClientContext) -> None:
    """Train on the local batches without clipping or noise.

    Afterwards the local model depends on every record, and nothing guards what is sent of it but
    the release of the whole.
    """
    for batch in context.batches():
        context.step(context.plain_mean(batch))
