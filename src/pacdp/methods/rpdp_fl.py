"""rPDP-FL (Liu et al. 2024): personal budgets by sampling records instead of by noise."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.errors import InputError
from pacdp.methods.base import Answer, ClientContext
from pacdp.methods.client_plan import CalibrationRequest, ReleaseSpec
from pacdp.methods.fixed import Fixed
from pacdp.privacy import Scope, calibrate, calibrate_sampling_rate

# Calibrating a rate takes seconds, and clients with the same budget have the same one.
_calibrate_rate = lru_cache(maxsize=256)(calibrate_sampling_rate)


class RpdpFl(Fixed):
    """The same noise for all clients; each client's sampling rate is set by its budget.

    The noise is what the largest budget needs if every record takes part. In each step, a client
    with budget ε_i samples each record at the rate q_i at which that noise costs ε_i, according to
    a numerical accountant; the published least-squares curve exceeds the budget. Records are
    sampled by the client and unseen by the server, which amplifies privacy; sampling of clients by
    the server does not.

    >>> RpdpFl().clipping_bound
    1.0
    """

    name: ClassVar[str] = "rpdp-fl"

    clipping_bound: Real = Field(1.0, gt=0, allow_inf_nan=False, description="Clipping bound C.")

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return one sampled sum per step."""
        if request.scope is not Scope.TOTAL or request.accountant not in (None, "pld"):
            raise InputError("rpdp-fl: needs a total budget and the accountant pld")
        largest = max(request.budgets)
        common: dict[str, Any] = {
            "delta": request.delta,
            "releases": request.steps * request.participations,
            "adjacency": request.adjacency,
        }
        release = calibrate(epsilon=largest, **common).release()
        rate = 1.0
        if request.epsilon < largest:
            rate = _calibrate_rate(
                epsilon=request.epsilon, noise_multiplier=release.noise_multiplier, **common
            ).sampling_rate
        return [
            ReleaseSpec(
                noise_multiplier=release.noise_multiplier,
                sensitivity=release.sensitivity,
                each=request.steps,
                sampling_rate=rate,
            )
        ]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: int) -> float:
        """Return the expected number of records in a step: fixed, never the realised number."""
        return specs[0].sampling_rate * records

    def train(self, context: ClientContext) -> Answer:
        """Sample, clip, sum, add noise and take a step, as often as planned."""
        rate = context.client_plan.charges[0].sampling_rate
        for _ in range(context.client_plan.steps):
            context.step(context.release(context.sampled_sum(rate, self.clipping_bound)))
        return Answer(context.update())
