"""A reading of the paper that reaches its accuracies, with its true privacy cost."""

import math
from typing import ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.errors import InputError
from pacdp.methods.client_plan import CalibrationRequest, ReleaseSpec
from pacdp.methods.nbafl import Nbafl


class NoiseOnce(Nbafl):
    """Train locally without noise; then add the noise of a single step once, to the whole update.

    The update is clipped as a whole to the norm of all clipped steps together, lr·C·steps, and one
    record can turn it into any other of that norm: S is twice that. The noise of a single step is
    lr·z·C/B with the classic z = √(2 ln(1.25/δ))/ε. The ledger is charged the true cost, and its
    entries carry the label.

    >>> NoiseOnce(clipping_bound=1.275).label
    'noise-once'
    """

    name: ClassVar[str] = "noise-once"
    label: ClassVar[str] = "noise-once"

    clipping_bound: Real = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Clipping bound of the whole update, lr·C·steps.",
    )

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return one upload per participation: lr·C cancels, so σ over its bound is z/(B·steps)."""
        if request.steps % request.passes:
            raise InputError(
                "noise-once: needs whole local epochs, so that batches are of one size"
            )
        z = math.sqrt(2 * math.log(1.25 / request.delta)) / request.epsilon
        batch = request.records * request.passes / request.steps
        return [ReleaseSpec(noise_multiplier=z / (batch * request.steps), sensitivity=2.0, each=1)]
