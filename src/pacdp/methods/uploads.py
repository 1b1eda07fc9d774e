"""The noise in an upload, computed from public facts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pacdp.methods.client_plan import ClientPlan


@dataclass(frozen=True, kw_only=True)
class UploadTerms:
    """The public facts of one participation on which the noise in its update depends.

    The client knows them before it sends, and the server after it has decoded the reply.
    """

    client_id: int
    client_plan: ClientPlan
    round: int
    rounds: int
    scale: float
    """The noise relative to even spending."""
    gains: Sequence[float] | None
    """The factor with which the gradient of each local step enters the update; None if the update
    is not linear in the gradients."""
    shared_state: Mapping[str, Any]
    """The method's state on the server when the client was asked."""
    released: Sequence[Mapping[str, Tensor]] = field(default_factory=tuple)
    """The values that the client released in addition to its update."""

    def release_noise(self, bound: float) -> float:
        """Return σ of a value that was clipped to ``bound``, released and divided."""
        multiplier = self.client_plan.charges[0].noise_multiplier
        return multiplier * self.scale * bound / self.client_plan.divisor

    def steps_noise(self, bounds: Sequence[float]) -> float | None:
        """Return σ of the sum of all local steps; ``bounds`` are their clipping bounds.

        This counts only the noise that was added. It also affects the gradients of later steps
        through the model, which is not counted.
        """
        if self.gains is None:
            return None
        return math.hypot(
            *(g * self.release_noise(c) for g, c in zip(self.gains, bounds, strict=True))
        )
