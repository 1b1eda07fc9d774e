"""How well a curve fitted on one proxy does on another one."""

from dataclasses import dataclass

import numpy as np

from pacdp.curve.bound_selection import estimate_score
from pacdp.curve.curve import Curve


@dataclass(frozen=True)
class TransferLoss:
    """What a transferred curve loses at one budget against the proxy's own curve."""

    epsilon: float
    bound: float
    """Clipping bound of the transferred curve."""
    own: float
    """Clipping bound of the proxy's own curve."""
    lost: float
    """Difference in score, estimated from the proxy's matrix P."""


def measure_transfer(curve: Curve, other: Curve) -> list[TransferLoss]:
    """Measure what ``curve`` loses on the proxy that ``other`` was fitted on, for each budget.

    Nothing is trained: the matrix P of ``other`` gives the score of every bound.
    """
    evidence = other.require_evidence()
    losses = []
    tables = np.array(evidence.scores).swapaxes(0, 1)
    for epsilon, scores in zip(evidence.budgets, tables, strict=True):
        bound, own = curve(epsilon), other(epsilon)
        reached, best = (estimate_score(scores, evidence.bounds, at=at) for at in (bound, own))
        losses.append(TransferLoss(epsilon=epsilon, bound=bound, own=own, lost=best - reached))
    return losses
