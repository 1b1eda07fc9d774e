"""A reading of the paper that reaches its accuracies, and what it is worth."""

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from pacdp.errors import InputError
from pacdp.methods.base import Answer, Charge, Method, Terms, Work
from pacdp.settings import Real


class NoiseOnce(Method):
    """Ordinary local training; then the noise of a single step, once, on the whole update.

    Nothing is clipped or noised on the way. The update is clipped as a whole to the length of so
    many clipped steps, lr·C·steps, and one record can turn it into any other of that length: S is
    twice that. The noise of a single step is lr·z·C/B with the classic z = √(2 ln(1.25/δ))/ε. The
    ledger is charged what this really costs, and its rows carry the label.

    >>> NoiseOnce(clipping_bound=1.275).label
    'noise-once'
    """

    name: ClassVar[str] = "noise-once"
    label: ClassVar[str] = "noise-once"

    clipping_bound: Real = Field(
        1.0, gt=0, allow_inf_nan=False, description="Of the update: lr·C·steps."
    )

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """That of the update, whatever the budget and the round."""
        return self.clipping_bound

    def charges(self, terms: Terms) -> list[Charge]:
        """One upload a participation: lr·C cancels, and z/(B·steps) is left of σ over its bound."""
        if terms.steps % terms.passes:
            raise InputError(
                "noise-once: needs whole local epochs, so that batches are of one size"
            )
        z = math.sqrt(2 * math.log(1.25 / terms.delta)) / terms.epsilon
        batch = terms.records * terms.passes / terms.steps
        return [Charge(noise_multiplier=z / (batch * terms.steps), sensitivity=2.0, each=1)]

    def divisor(self, usual: float, charges: Sequence[Charge], records: int) -> float:
        """An upload is sent as it is."""
        return 1.0

    def train(self, work: Work) -> Answer:
        """Ordinary local training, and one noised upload."""
        for batch in work.batches():
            work.step(work.plain_mean(batch))
        return Answer(work.release(work.clipped_update(self.clipping_bound)))
