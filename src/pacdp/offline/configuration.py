"""What a user decides about the offline phase."""

from itertools import pairwise
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pacdp.config import Count, Real, Settings


class Axis(Settings):
    """Numbers from low to high, evenly spaced in their logarithm.

    >>> [round(value, 3) for value in Axis(low=0.01, high=1.0, count=3).values]
    [0.01, 0.1, 1.0]
    """

    low: Real = Field(gt=0, allow_inf_nan=False, description="The smallest.")
    high: Real = Field(gt=0, allow_inf_nan=False, description="The largest.")
    count: Count = Field(description="How many.")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not self.low < self.high or self.count < 2:
            raise ValueError(f"{self.low:g} to {self.high:g} in {self.count}: must rise in 2 steps")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers."""
        return tuple(np.geomspace(self.low, self.high, self.count).tolist())


class Offline(Settings):
    """The grid of budgets and bounds, and what is made of it."""

    proxy: str | None = Field(
        None, description="A ready proxy, a data set or a folder; by default the first ready one."
    )
    budgets: Axis | tuple[Real, ...] = Field(
        Axis(low=0.01, high=10.0, count=7), description="Budgets ε of the grid."
    )
    bounds: Axis | tuple[Real, ...] = Field(
        Axis(low=0.01, high=10.0, count=12), description="Clipping bounds C of the grid."
    )
    seeds: Count = Field(5, description="Trainings of each cell.")
    rates: tuple[Real, ...] = Field(
        (), description="Other learning rates, to see what C* and lr·C would be under them."
    )
    rule: Literal["plateau", "argmax"] = Field(
        "plateau", description="How C* is chosen: plateau knows the noise, argmax is the paper's."
    )
    family: Literal["quadratic", "power", "piecewise"] | None = Field(
        None, description="Of F; by default the one that predicts left-out budgets best."
    )
    monotone: bool = Field(True, description="Whether F may not fall.")
    widen: Count | None = Field(
        None, description="How often the bounds are widened where C* lies at their edge."
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not all(0 < rate < float("inf") for rate in self.rates):
            raise ValueError("rates: must be positive numbers")
        for name, least in (("budgets", 4), ("bounds", 3)):
            values = self.axis(name)
            if len(values) < least or any(a >= b for a, b in pairwise(values)):
                raise ValueError(f"{name}: must be at least {least}, rising")
            if not all(0 < value < float("inf") for value in values):
                raise ValueError(f"{name}: must be positive numbers")
        return self

    def axis(self, name: str) -> tuple[float, ...]:
        """The numbers of ``budgets`` or ``bounds``."""
        given = getattr(self, name)
        return given.values if isinstance(given, Axis) else tuple(float(value) for value in given)
