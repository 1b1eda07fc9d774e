"""How the clipping bound shrinks over the rounds: λ(t), a function of the round alone.

Noise is scaled by the bound that clipped, so its multiplier does not change with λ and the schedule
costs no privacy.
"""

import math
from typing import Literal

from pydantic import Field

from pacdp.config import Settings
from pacdp.errors import InputError


class Schedule(Settings):
    """λ(t) = 1 for t < ⌊r_s·T⌋, then a cosine down towards λ_min; or 1 throughout.

    The defaults are the paper's. The last round is T − 1, so λ_min is approached and not reached.

    >>> schedule = Schedule()
    >>> [round(schedule.factor(t, rounds=10), 3) for t in (0, 5, 6, 8, 9)]
    [1.0, 1.0, 1.0, 0.55, 0.232]
    >>> Schedule(kind="none").factor(9, rounds=10)
    1.0
    """

    kind: Literal["cosine", "none"] = Field("cosine", description="λ(t): cosine, or 1 throughout.")
    stable: float = Field(
        0.6, ge=0, le=1, description="r_s: the share of rounds before it shrinks."
    )
    least: float = Field(0.1, gt=0, le=1, description="λ_min: what it shrinks towards.")

    def factor(self, round: int, *, rounds: int) -> float:  # noqa: A002
        """λ(t) for round t of T."""
        if not 0 <= round < rounds:
            raise InputError(f"round = {round}: must be from 0 to {rounds - 1}")
        start = math.floor(self.stable * rounds)
        if self.kind == "none" or round < start:
            return 1.0
        along = (round - start) / (rounds - start)
        return self.least + (1 - self.least) * (1 + math.cos(math.pi * along)) / 2
