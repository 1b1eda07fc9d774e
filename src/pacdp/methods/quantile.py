"""Clipping bounds that follow a quantile of the gradients' lengths (Andrew et al. 2019).

With each clipped sum goes a noised, centred count of the gradients that are no longer than the
bound; the bound moves towards where a share γ of them is. It is a function of past noised counts
alone, and the counts are paid for: a share β of the budget, with the rest left for the gradients.
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
    CalibrationRequest,
    ClientContext,
    Method,
    PlannedClient,
    ReleaseSpec,
    SharedState,
    Tensors,
    clipped_gradients,
)
from pacdp.validation import require_positive_number

# Bounds that were driven to the end of the numbers would stop training for good.
SMALLEST, LARGEST = 1e-6, 1e6


class Quantile(Method):
    """What trackers share: a start, a speed, a target and a price."""

    bound_setting: ClassVar[str] = "first_bound"

    quantile: Real = Field(0.5, gt=0, lt=1, description="γ: the share that the bound aims at.")
    speed: Real = Field(0.2, gt=0, allow_inf_nan=False, description="η_C.")
    first_bound: Real = Field(0.1, gt=0, allow_inf_nan=False, description="C₀.")
    share: Real = Field(0.1, gt=0, lt=1, description="β: the counts' share of the budget.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C₀: what follows depends on noised counts."""
        return self.first_bound

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """A sum and a count in each pass, which together cost the budget."""
        gradients = clipped_gradients(request, share=1 - self.share)
        whole = clipped_gradients(request)
        # A centred count is bounded by ½; as a clipped sum, C is that half.
        z = whole.z / math.sqrt(self.share)
        adjacent = request.adjacency.sensitivity
        counts = ReleaseSpec(
            noise_multiplier=z * adjacent, sensitivity=adjacent, each=request.passes
        )
        return [gradients, counts]

    def moved(self, bound: float, count: float, divisor: float) -> float:
        """The bound after a noised count: C·exp(−η_C(b̃ − γ)), b̃ the share within the bound.

        >>> round(AdaptiveQuantile().moved(1.0, count=5.0, divisor=10.0), 6)
        0.904837
        """
        if not math.isfinite(count):
            return bound
        within = min(max(count / divisor + 0.5, 0.0), 1.0)
        moved = bound * math.exp(-self.speed * (within - self.quantile))
        return min(max(moved, SMALLEST), LARGEST)


def _bound(shared_state: SharedState, name: str, client: int | None = None) -> float:
    """A bound that the server sent. Any will do for privacy; it must be a positive number."""
    try:
        found = shared_state[name] if client is None else shared_state[name][client]
    except (KeyError, IndexError, TypeError):
        raise InputError(f"{name}: the server sent none for client {client}") from None
    return min(max(require_positive_number(name, found), SMALLEST), LARGEST)


class MedianTracker(Quantile):
    """CGM-median: each client follows the median of its own gradients, and pays for it.

    >>> MedianTracker().quantile
    0.5
    """

    name: ClassVar[str] = "cgm-median"

    def check_state(self, shared_state: SharedState, client: int) -> None:
        """Refuse a bound that is none."""
        _bound(shared_state, "bounds", client)

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """The client's own bound, which is public."""
        return _bound(shared_state, "bounds", client)

    def adapted_bound(self, shared_state: SharedState) -> float:
        """The median of the clients' bounds."""
        return statistics.median(shared_state["bounds"])

    def initial_state(self, clients: int) -> SharedState:
        """Every client's bound."""
        return {"bounds": [self.first_bound] * clients}

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[PlannedClient, Sequence[Tensors]]],
    ) -> SharedState:
        """The bounds that the clients reached; anyone can follow them from the counts."""
        bounds = list(shared_state["bounds"])
        for client_id, (client, counts) in replies.items():
            for count in counts:
                bounds[client_id] = self.moved(
                    bounds[client_id], float(count["count"]), client.divisor
                )
        return {"bounds": bounds}

    def train(self, context: ClientContext) -> Answer:
        """Clip with the old bound, then move it by the noised count."""
        bound = _bound(context.shared_state, "bounds", context.client_id)
        counts = []
        for batch in context.batches():
            count = context.release(context.count_within(batch, bound), index=1, divisor=1.0)
            context.step(context.release(context.clipped_sum(batch, bound)))
            bound = self.moved(bound, float(count["count"]), context.client_plan.divisor)
            counts.append(count)
        return Answer(context.update(), counts)


class AdaptiveQuantile(Quantile):
    """AQC: one bound for all, moved by the mean of the clients' noised counts.

    >>> AdaptiveQuantile().initial_state(clients=5)
    {'bound': 0.1}
    """

    name: ClassVar[str] = "aqc"

    def check_state(self, shared_state: SharedState, client: int) -> None:
        """Refuse a bound that is none."""
        _bound(shared_state, "bound")

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """The bound of all."""
        return _bound(shared_state, "bound")

    def adapted_bound(self, shared_state: SharedState) -> float:
        """The bound of all."""
        return float(shared_state["bound"])

    def initial_state(self, clients: int) -> SharedState:
        """The bound of all."""
        return {"bound": self.first_bound}

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[PlannedClient, Sequence[Tensors]]],
    ) -> SharedState:
        """One move a round, by the mean share within the bound."""
        shares = [
            float(count["count"]) / client.divisor
            for client, counts in replies.values()
            for count in counts
        ]
        if not shares:
            return shared_state
        mean = sum(shares) / len(shares)
        return {"bound": self.moved(float(shared_state["bound"]), mean, 1.0)}

    def train(self, context: ClientContext) -> Answer:
        """Clip with the bound of the round, and count."""
        bound = _bound(context.shared_state, "bound")
        counts = []
        for batch in context.batches():
            counts.append(context.release(context.count_within(batch, bound), index=1, divisor=1.0))
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update(), counts)


class NonPrivateQuantile(Quantile):
    """The quantile itself, read for free. Nothing is certified: it has no ε and no ledger.

    The noise on the gradients is what the budget would ask for if looking at them cost nothing, as
    is sometimes assumed; so it shows what paying costs.

    >>> NonPrivateQuantile().private
    False
    """

    name: ClassVar[str] = "non-private-quantile"
    private: ClassVar[bool] = False

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """The noise of the whole budget, for the gradients alone."""
        return [clipped_gradients(request)]

    def train(self, context: ClientContext) -> Answer:
        """Clip at the batch's own quantile."""
        for batch in context.batches():
            lengths = context.norms(batch).nan_to_num(nan=LARGEST, posinf=LARGEST)
            bound = float(torch.quantile(lengths, self.quantile))
            bound = min(max(bound, SMALLEST), LARGEST)
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update())
