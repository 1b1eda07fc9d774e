"""How well a curve made on one proxy does on another's."""

from dataclasses import dataclass

import numpy as np

from pacdp.curve.curve import Curve
from pacdp.curve.threshold_selection import smoothed
from pacdp.errors import InputError


@dataclass(frozen=True)
class Transferred:
    """One budget: what a curve says, what the proxy's own says, and what the difference costs."""

    epsilon: float
    bound: float
    own: float
    lost: float
    """In the metric of the proxy, by its smoothed matrix P."""


def transfer(curve: Curve, other: Curve) -> list[Transferred]:
    """What ``curve`` loses on the proxy that ``other`` was made from, budget by budget.

    No training: the other's matrix P says what each bound is worth there.
    """
    evidence = other.evidence
    if "scores" not in evidence:
        raise InputError("curve: holds no grid to compare on; pacdp fit makes one that does")
    scores, bounds = np.array(evidence["scores"]), evidence["bounds"]
    found = []
    for row, epsilon in enumerate(evidence["budgets"]):
        theirs, mine = other(epsilon), curve(epsilon)
        best, reached = (smoothed(scores[:, row], bounds, at=bound) for bound in (theirs, mine))
        found.append(Transferred(epsilon=epsilon, bound=mine, own=theirs, lost=best - reached))
    return found
