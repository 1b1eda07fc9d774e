"""The user's settings of the offline phase."""

from itertools import pairwise
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from pacdp.config import Count, Real, Settings
from pacdp.curve.evidence import Family, Rule


class Axis(Settings):
    """Numbers from low to high, evenly spaced in their logarithm.

    >>> [round(value, 3) for value in Axis(low=0.01, high=1.0, count=3).values]
    [0.01, 0.1, 1.0]
    """

    low: Real = Field(gt=0, allow_inf_nan=False, description="Smallest value.")
    high: Real = Field(gt=0, allow_inf_nan=False, description="Largest value.")
    count: Count = Field(description="Number of values.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high or self.count < 2:
            raise ValueError(f"{self.low:g} to {self.high:g} in {self.count}: must rise in 2 steps")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """Return the numbers."""
        return tuple(np.geomspace(self.low, self.high, self.count).tolist())


class Offline(Settings):
    """The grid of budgets and clipping bounds to simulate, and how F is fitted to it."""

    proxy: str | None = Field(
        None,
        description="Name of a built-in proxy or a data set, or a folder; by default the first "
        "built-in proxy.",
    )
    budgets: Axis | tuple[Real, ...] = Field(
        Axis(low=0.01, high=10.0, count=7), description="Budgets ε of the grid."
    )
    bounds: Axis | tuple[Real, ...] = Field(
        Axis(low=0.01, high=10.0, count=12), description="Clipping bounds C of the grid."
    )
    seeds: Count = Field(5, description="Number of training runs per grid cell.")
    rates: tuple[Real, ...] = Field(
        (), description="Further learning rates for which to report C* and lr·C*."
    )
    rule: Rule = Field(
        "plateau",
        description="How C* is selected: plateau accounts for noise, argmax is the paper's rule.",
    )
    family: Family | None = Field(
        None, description="Family of F; by default the one with the smallest left-out error."
    )
    monotone: bool = Field(True, description="Whether F must be non-decreasing.")
    widen: Count | None = Field(
        None, description="Maximum number of times to extend the bounds where C* is at their edge."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(0 < rate < float("inf") for rate in self.rates):
            raise ValueError("rates: must be positive numbers")
        for name, minimum in (("budgets", 4), ("bounds", 3)):
            values = self.axis(name)
            if len(values) < minimum or any(a >= b for a, b in pairwise(values)):
                raise ValueError(f"{name}: must be at least {minimum}, rising")
            if not all(0 < value < float("inf") for value in values):
                raise ValueError(f"{name}: must be positive numbers")
        return self

    def axis(self, name: str) -> tuple[float, ...]:
        """Return the numbers of ``budgets`` or ``bounds``."""
        given = getattr(self, name)
        return given.values if isinstance(given, Axis) else tuple(float(value) for value in given)
