"""DP-FedAvg: one clipping bound and one budget for all."""

from collections.abc import Sequence
from typing import ClassVar

from pacdp.methods.fixed import Fixed


class DpFedAvg(Fixed):
    """Fixed C, and for everyone the smallest budget of all.

    It is the only uniform budget that keeps every client's promise: the difference to ``fixed``
    is what personal budgets buy.

    >>> DpFedAvg().budgets([0.5, 0.01, 0.05])
    [0.01, 0.01, 0.01]
    """

    name: ClassVar[str] = "dp-fedavg"

    def budgets(self, budgets: Sequence[float]) -> list[float]:
        """The smallest of all, for each."""
        return [min(budgets)] * len(budgets)
