"""One constant clipping bound for all clients and rounds."""

from typing import ClassVar

from pydantic import Field

from pacdp.methods.base import Method


class Fixed(Method):
    """The same constant clipping bound C for all clients, each with its own budget.

    >>> Fixed(clipping_bound=5.0).bound(0.1, round=3, rounds=10)
    5.0
    """

    name: ClassVar[str] = "fixed"
    supports_record_budgets: ClassVar[bool] = True

    clipping_bound: float = Field(1.0, gt=0, allow_inf_nan=False, description="Clipping bound C.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """Return C for every budget and round."""
        return self.clipping_bound
