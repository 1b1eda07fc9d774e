"""A reading of the paper that reaches its accuracies, and what it is worth."""

import math
from typing import ClassVar

from pydantic import Field

from pacdp.methods.base import Answer, Charge, Method, Terms, Work
from pacdp.settings import Real


class NoiseOnce(Method):
    """Local training without noise; then the noise of a single step, once, on the whole update.

    A step may move the local model by lr·C, so an update of so many steps is at most lr·C·steps
    long, and one record can turn it into any other: S is twice that. The noise of one step is
    lr·z·C/B with the classic z = √(2 ln(1.25/δ))/ε. The ledger is charged what this really costs,
    and its rows carry the label.

    >>> NoiseOnce().label
    'noise-once'
    """

    name: ClassVar[str] = "noise-once"
    label: ClassVar[str] = "noise-once"

    clipping_bound: Real = Field(1.0, gt=0, allow_inf_nan=False, description="C of a step.")
    lr: Real = Field(0.01, gt=0, allow_inf_nan=False, description="The clients' learning rate.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C, whatever the budget and the round."""
        return self.clipping_bound

    def charges(self, terms: Terms) -> list[Charge]:
        """One upload a participation: lr·C cancels, and z/(B·steps) is left of σ over its bound."""
        z = math.sqrt(2 * math.log(1.25 / terms.delta)) / terms.epsilon
        batch = terms.records * terms.passes / terms.steps
        return [Charge(noise_multiplier=z / (batch * terms.steps), sensitivity=2.0, each=1)]

    def train(self, work: Work) -> Answer:
        """Ordinary local training, and one noised upload."""
        for batch in work.batches():
            work.step(work.plain_mean(batch))
        longest = self.lr * self.clipping_bound * work.task.steps
        return Answer(work.release(work.clipped_update(longest), divisor=1.0))
