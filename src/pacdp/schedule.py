"""The clipping schedule λ(t): a factor on the clipping bound that depends on the round alone.

Noise is scaled to the bound that was used for clipping, so λ(t) leaves the noise multiplier
unchanged and costs no privacy.
"""

import math
from typing import Literal

from pydantic import Field

from pacdp.config import Settings
from pacdp.errors import InputError


class Schedule(Settings):
    """λ(t) = 1 for t < ⌊r_s·T⌋, followed by cosine decay towards λ_min; or 1 throughout.

    The defaults are the paper's. The last round is T − 1, so λ_min itself is never reached.

    >>> schedule = Schedule()
    >>> [round(schedule.factor(t, rounds=10), 3) for t in (0, 5, 6, 8, 9)]
    [1.0, 1.0, 1.0, 0.55, 0.232]
    >>> Schedule(kind="none").factor(9, rounds=10)
    1.0
    """

    kind: Literal["cosine", "none"] = Field(
        "cosine", description="Shape of λ(t): cosine decay, or 1 throughout."
    )
    hold_fraction: float = Field(
        0.6, ge=0, le=1, description="r_s: fraction of the rounds before the decay starts."
    )
    min_factor: float = Field(0.1, gt=0, le=1, description="λ_min: factor that λ(t) decays to.")

    def factor(self, round: int, *, rounds: int) -> float:  # noqa: A002
        """Return λ(t) for round t of T."""
        if not 0 <= round < rounds:
            raise InputError(f"round = {round}: must be from 0 to {rounds - 1}")
        start = math.floor(self.hold_fraction * rounds)
        if self.kind == "none" or round < start:
            return 1.0
        progress = (round - start) / (rounds - start)
        return self.min_factor + (1 - self.min_factor) * (1 + math.cos(math.pi * progress)) / 2
