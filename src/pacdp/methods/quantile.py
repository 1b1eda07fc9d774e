"""Clipping bounds that track a quantile of the gradient norms (Andrew et al. 2019).

With each clipped sum, a client releases a noised, centred count of the gradients within the bound,
and the bound moves towards the value that a share γ of the norms does not exceed. It is a function
of past noised counts only, and the counts are paid for with a share β of the budget.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field

from pacdp.config import Real
from pacdp.errors import InputError
from pacdp.methods.base import (
    Answer,
    ClientContext,
    Method,
    SharedState,
    Tensors,
    clipped_gradients,
)
from pacdp.methods.client_plan import CalibrationRequest, ClientPlan, ReleaseSpec
from pacdp.methods.uploads import UploadTerms
from pacdp.validation import require_positive_number

# A bound beyond these limits would stop the training for good.
SMALLEST, LARGEST = 1e-6, 1e6


def _limit(bound: float) -> float:
    return min(max(bound, SMALLEST), LARGEST)


class Quantile(Method):
    """The settings that all quantile methods share."""

    bound_setting: ClassVar[str] = "first_bound"

    quantile: Real = Field(
        0.5, gt=0, lt=1, description="γ: target share of gradient norms within the bound."
    )
    speed: Real = Field(0.2, gt=0, allow_inf_nan=False, description="η_C: step size of the bound.")
    first_bound: Real = Field(
        0.1, gt=0, allow_inf_nan=False, description="C₀: initial clipping bound."
    )
    share: Real = Field(0.1, gt=0, lt=1, description="β: share of the budget spent on the counts.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """Return C₀; later bounds depend on noised counts."""
        return self.first_bound


class Tracker(Quantile):
    """A bound that follows noised counts. It is part of the shared state, so it is public."""

    per_client: ClassVar[bool] = False
    """Whether each client has its own bound, which moves after each of its steps."""

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return a sum and a count per pass, which together cost the budget."""
        gradients = clipped_gradients(request, share=1 - self.share)
        # A centred count is bounded by ½; as a clipped sum, C is that half.
        z = clipped_gradients(request).z / math.sqrt(self.share)
        sensitivity = request.adjacency.sensitivity
        counts = ReleaseSpec(
            noise_multiplier=z * sensitivity, sensitivity=sensitivity, each=request.passes
        )
        return [gradients, counts]

    def move_bound(self, bound: float, count: float, divisor: float) -> float:
        """Move the bound by a noised count: C·exp(−η_C(b̃ − γ)), b̃ the share within the bound.

        >>> round(AdaptiveQuantile().move_bound(1.0, count=5.0, divisor=10.0), 6)
        0.904837
        """
        if not math.isfinite(count):
            return bound
        within = min(max(count / divisor + 0.5, 0.0), 1.0)
        return _limit(bound * math.exp(-self.speed * (within - self.quantile)))

    def check_state(self, shared_state: SharedState, client: int) -> None:
        """Refuse a state without a positive bound. Any bound is safe for privacy."""
        self.current_bound(self.first_bound, shared_state, client)

    def further_releases(self, client: ClientPlan) -> Sequence[Mapping[str, tuple[int, ...]]]:
        """Return the count of each step."""
        return [{"count": ()}] * client.steps

    def upload_noise(self, terms: UploadTerms) -> float | None:
        """Return σ of the sum of all steps; their clipping bounds follow from the counts."""
        bound = self.current_bound(self.first_bound, terms.shared_state, terms.client_id)
        bounds = []
        for count in terms.released:
            bounds.append(bound)
            if self.per_client:
                bound = self.move_bound(bound, float(count["count"]), terms.client_plan.divisor)
        return terms.steps_noise(bounds)

    def train(self, context: ClientContext) -> Answer:
        """Train with the current bound, and release a count with each clipped sum."""
        bound = self.current_bound(self.first_bound, context.shared_state, context.client_id)
        counts = []
        for batch in context.batches():
            count = context.release(context.count_within(batch, bound), index=1, divisor=1.0)
            context.step(context.release(context.clipped_sum(batch, bound)))
            counts.append(count)
            if self.per_client:
                bound = self.move_bound(bound, float(count["count"]), context.client_plan.divisor)
        return Answer(context.update(), counts)


class MedianTracker(Tracker):
    """CGM-median: the bound of each client tracks the median of its own gradient norms.

    >>> MedianTracker().quantile
    0.5
    """

    name: ClassVar[str] = "cgm-median"
    per_client: ClassVar[bool] = True

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """Return the client's own bound."""
        try:
            return _limit(require_positive_number("bounds", shared_state["bounds"][client]))
        except (KeyError, IndexError, TypeError):
            raise InputError(f"bounds: the server sent none for client {client}") from None

    def adapted_bound(self, shared_state: SharedState) -> float:
        """Return the median of the clients' bounds."""
        return statistics.median(shared_state["bounds"])

    def initial_state(self, clients: int) -> SharedState:
        """Return every client's bound."""
        return {"bounds": [self.first_bound] * clients}

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[ClientPlan, Sequence[Tensors]]],
    ) -> SharedState:
        """Compute from the counts the bounds that the clients have reached."""
        bounds = list(shared_state["bounds"])
        for client_id, (client, counts) in replies.items():
            for count in counts:
                bounds[client_id] = self.move_bound(
                    bounds[client_id], float(count["count"]), client.divisor
                )
        return {"bounds": bounds}


class AdaptiveQuantile(Tracker):
    """AQC: one bound for all clients, moved by the mean of their noised counts.

    >>> AdaptiveQuantile().initial_state(clients=5)
    {'bound': 0.1}
    """

    name: ClassVar[str] = "aqc"

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """Return the common bound."""
        try:
            return _limit(require_positive_number("bound", shared_state["bound"]))
        except (KeyError, TypeError):
            raise InputError("bound: the server sent none") from None

    def adapted_bound(self, shared_state: SharedState) -> float:
        """Return the common bound."""
        return float(shared_state["bound"])

    def initial_state(self, clients: int) -> SharedState:
        """Return the common bound."""
        return {"bound": self.first_bound}

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[ClientPlan, Sequence[Tensors]]],
    ) -> SharedState:
        """Move the bound once per round, by the mean share within it."""
        shares = [
            float(count["count"]) / client.divisor
            for client, counts in replies.values()
            for count in counts
        ]
        if not shares:
            return shared_state
        return {"bound": self.move_bound(shared_state["bound"], sum(shares) / len(shares), 1.0)}


class NonPrivateQuantile(Quantile):
    """Clips at the true quantile without paying for it; gives no privacy guarantee.

    The gradients get the noise that the budget would require if reading the quantile were free, as
    is sometimes assumed, so the difference to the trackers shows what paying for it costs.

    >>> NonPrivateQuantile().private
    False
    """

    name: ClassVar[str] = "non-private-quantile"
    private: ClassVar[bool] = False

    def train(self, context: ClientContext) -> Answer:
        """Train with the quantile of each batch as its bound."""
        for batch in context.batches():
            norms = context.norms(batch).nan_to_num(nan=LARGEST, posinf=LARGEST)
            bound = _limit(float(torch.quantile(norms, self.quantile)))
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update())
