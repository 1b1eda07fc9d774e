"""DP-FedAvg: one clipping bound and one budget for all clients."""

from collections.abc import Sequence
from typing import ClassVar

from pacdp.methods.fixed import Fixed


class DpFedAvg(Fixed):
    """The same constant clipping bound for all clients, and the smallest budget for everyone.

    This is the only uniform budget that respects every client's own, so the difference to ``fixed``
    shows what personal budgets gain.

    >>> DpFedAvg().budgets([0.5, 0.01, 0.05])
    [0.01, 0.01, 0.01]
    """

    name: ClassVar[str] = "dp-fedavg"
    supports_record_budgets: ClassVar[bool] = False

    def budgets(self, budgets: Sequence[float]) -> list[float]:
        """Return the smallest budget for each client."""
        return [min(budgets)] * len(budgets)
