"""Baselines that treat records with different budgets alike: by the smallest, or without some."""

from collections.abc import Sequence
from typing import ClassVar

from pacdp.methods.fixed import Fixed
from pacdp.privacy import DEFAULT_DELTA, mu_for


class SmallestBudget(Fixed):
    """A constant clipping bound; each client uses the smallest budget of its records for all.

    Without budgets of single records it is ``fixed``.

    >>> SmallestBudget().level_budgets([0.1, 1.0, 5.0], [0, 20, 10])
    [0.0, 1.0, 1.0]
    """

    name: ClassVar[str] = "smallest-budget"

    def level_budgets(self, levels: Sequence[float], units: Sequence[int]) -> list[float]:
        """Return the smallest ε that any of the client's records has; 0 below it."""
        return _use_from(levels, min(_held(levels, units)))


class DropSmallBudgets(Fixed):
    """A constant clipping bound; each client leaves out its records below a threshold budget.

    The remaining records all use the threshold's ε. It is the level that maximises (units of at
    least this level)·μ(ε), the signal of a sum over its noise, at δ = 1e-5 whatever the plan's δ.
    It depends on the public numbers of records at each level alone; of equal ones the smaller is
    taken. Without budgets of single records the method is ``fixed``.

    >>> DropSmallBudgets().level_budgets([0.1, 1.0, 5.0], [70, 20, 10])
    [0.0, 0.0, 5.0]
    >>> DropSmallBudgets().level_budgets([0.5, 1.0, 2.0], [5, 90, 5])
    [0.0, 1.0, 1.0]
    """

    name: ClassVar[str] = "drop-small-budgets"

    def level_budgets(self, levels: Sequence[float], units: Sequence[int]) -> list[float]:
        """Return the threshold for the levels from it on, and 0 below it."""

        def signal(threshold: float) -> float:
            kept = sum(n for level, n in zip(levels, units, strict=True) if level >= threshold)
            return kept * float(mu_for(threshold, DEFAULT_DELTA))

        return _use_from(levels, max(_held(levels, units), key=signal))


def _held(levels: Sequence[float], units: Sequence[int]) -> list[float]:
    """Return the levels that any record has, in ascending order."""
    return [level for level, count in zip(levels, units, strict=True) if count]


def _use_from(levels: Sequence[float], threshold: float) -> list[float]:
    return [threshold if level >= threshold else 0.0 for level in levels]
