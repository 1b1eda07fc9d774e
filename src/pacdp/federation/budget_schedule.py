"""How a client spends its budget over its participations.

The noise may differ between participations. Each may spend any share of the budget, chosen as the
training goes on, and the whole stays within (ε, δ): Gaussian releases are certified by their sum
Σ 1/z² alone, which the client's ledger adds up and compares with its limit before anything leaves
(:mod:`pacdp.privacy.filter`). A share depends on who took part when, which the server sees anyway,
and never on a record.
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from pacdp.config import Real, Settings

# A remainder this small may be rounding.
NOTHING = 1e-9


class BudgetSchedule(Settings):
    """The share of a client's budget that each participation spends.

    ``even``
        The same share each time: one over the planned number of participations.
    ``late``
        Growing shares: the last planned participation spends ``growth`` times as much as the first.
    ``replan``
        The remaining budget over the participations that may still come. A client that was asked
        less often than planned has less noise from then on; one that is asked more often has more
        noise, and refuses only when everything is spent.

    >>> late = BudgetSchedule(policy="late", growth=3)
    >>> [round(late.share(completed=n, spent=0.0, planned=3, remaining=3), 3) for n in range(3)]
    [0.174, 0.302, 0.523]
    """

    policy: Literal["even", "late", "replan"] = Field(
        "even", description="How participations share the budget: even, late or replan."
    )
    growth: Real | None = Field(
        None,
        ge=1,
        le=1e6,
        description="Under late: ratio of the last participation's share to the first's; "
        "default: 4.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.growth is not None and self.policy != "late":
            raise ValueError(f"growth: is for the policy late, not {self.policy}")
        return self

    def share(self, *, completed: int, spent: float, planned: int, remaining: int) -> float:
        """Return the share of the whole budget (of μ²) that the next participation spends.

        ``completed`` participations have spent the share ``spent``; ``planned`` are planned in all,
        and ``remaining`` may still come, including this one.
        """
        if self.policy == "replan":
            left = 1 - NOTHING - spent
            return left / remaining if left > NOTHING else 0.0
        if self.policy == "even" or planned == 1:
            return 1 / planned
        # Shares grow by a constant factor, so their sum is geometric.
        rate = math.log(4.0 if self.growth is None else float(self.growth)) / (planned - 1)
        total = math.expm1(planned * rate) / math.expm1(rate) if rate else float(planned)
        return math.exp(min(completed, planned - 1) * rate) / total
