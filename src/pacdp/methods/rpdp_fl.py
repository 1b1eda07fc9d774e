"""rPDP-FL (Liu et al. 2024): budgets are kept by sampling records, not by noise."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.errors import InputError
from pacdp.methods.base import Answer, CalibrationRequest, ClientContext, Method, ReleaseSpec
from pacdp.privacy import Scope, calibrate, calibrate_sampling_rate


class RpdpFl(Method):
    """One noise for all, and for each client the sampling rate that its budget affords.

    The noise is what the largest budget needs when every record takes part. A client of budget ε_i
    draws each record of each step with the rate q_i at which that noise costs ε_i, by a numerical
    accountant; the published least-squares curve overspends. Drawn on the client and unseen by the
    server, sampling amplifies; that the server samples clients does not.

    >>> RpdpFl().clipping_bound
    1.0
    """

    name: ClassVar[str] = "rpdp-fl"

    clipping_bound: Real = Field(1.0, gt=0, allow_inf_nan=False, description="C.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C, whatever the budget and the round."""
        return self.clipping_bound

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """A sampled sum in each step."""
        if request.scope is not Scope.TOTAL or request.accountant not in (None, "pld"):
            raise InputError("rpdp-fl: needs a total budget and the accountant pld")
        releases = request.steps * request.participations
        largest = max(request.budgets)
        made = calibrate(
            epsilon=largest, delta=request.delta, releases=releases, adjacency=request.adjacency
        ).release()
        rate = 1.0
        if request.epsilon < largest:
            rate = _rate(
                *(request.epsilon, request.delta, releases, made.noise_multiplier),
                request.adjacency.value,
            )
        return [
            ReleaseSpec(
                noise_multiplier=made.noise_multiplier,
                sensitivity=made.sensitivity,
                each=request.steps,
                sampling_rate=rate,
            )
        ]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: int) -> float:
        """The records that are expected in a step: a fixed number, never the realised one."""
        return specs[0].sampling_rate * records

    def train(self, context: ClientContext) -> Answer:
        """Draw, clip, sum, noise and step."""
        rate = context.client_plan.charges[0].sampling_rate
        for _ in range(context.client_plan.steps):
            context.step(context.release(context.sampled_sum(rate, self.clipping_bound)))
        return Answer(context.update())


@lru_cache(maxsize=256)
def _rate(epsilon: float, delta: float, releases: int, noise: float, adjacency: str) -> float:
    """The largest rate that the budget affords. Clients of one budget ask the same."""
    return calibrate_sampling_rate(
        epsilon=epsilon,
        delta=delta,
        releases=releases,
        noise_multiplier=noise,
        adjacency=adjacency,
    ).sampling_rate
