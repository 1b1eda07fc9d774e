"""rPDP-FL (Liu et al. 2024): personal budgets by sampling records instead of by noise."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.errors import InputError
from pacdp.methods.base import Answer, ClientContext
from pacdp.methods.client_plan import CalibrationRequest, ReleaseSpec
from pacdp.methods.fixed import Fixed
from pacdp.methods.uploads import UploadTerms
from pacdp.privacy import LevelTerms, Scope, calibrate, calibrate_sampling_rate

# Calibrating a rate takes seconds, and clients with the same budget have the same one.
_calibrate_rate = lru_cache(maxsize=256)(calibrate_sampling_rate)


class RpdpFl(Fixed):
    """The same noise for all clients; the sampling rate of each record is set by its budget.

    The noise is what the largest budget needs if every record takes part. In each step, a client
    samples each record of budget ε at the rate q at which that noise costs ε, according to a
    numerical accountant; the published least-squares curve (``rpdp-fl-original``) can exceed the
    budget. A record's budget is its own level, or its client's budget where there are no levels.
    Records are sampled by the client and unseen by the server, which amplifies privacy; sampling of
    clients by the server does not.

    >>> RpdpFl().clipping_bound
    1.0
    """

    name: ClassVar[str] = "rpdp-fl"

    clipping_bound: Real = Field(1.0, gt=0, allow_inf_nan=False, description="Clipping bound C.")

    def noise_multiplier(self, largest: float, request: CalibrationRequest) -> float:
        """Return σ/C, common to all clients, where the largest budget is never sampled."""
        calibration = calibrate(
            epsilon=largest,
            delta=request.delta,
            releases=request.steps * request.participations,
            adjacency=request.adjacency,
        )
        return calibration.release().noise_multiplier

    def sampling_rate(self, epsilon: float, largest: float, request: CalibrationRequest) -> float:
        """Return the rate at which records of budget ε are sampled; 0 leaves them out."""
        if epsilon >= largest:
            return 1.0
        return _calibrate_rate(
            epsilon=epsilon,
            noise_multiplier=self.noise_multiplier(largest, request),
            delta=request.delta,
            releases=request.steps * request.participations,
            adjacency=request.adjacency,
        ).sampling_rate

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return one sampled sum per step."""
        if request.scope is not Scope.TOTAL or request.accountant not in (None, "pld"):
            raise InputError(f"{self.name}: needs a total budget and the accountant pld")
        largest, budgets = max(request.budgets), request.levels or [request.epsilon]
        rates = [
            # A level without records is left out.
            self.sampling_rate(epsilon, largest, request) if epsilon else 0.0
            for epsilon in budgets
        ]
        alike = len(set(rates)) == 1
        return [
            ReleaseSpec(
                noise_multiplier=self.noise_multiplier(largest, request),
                sensitivity=request.adjacency.sensitivity,
                each=request.steps,
                sampling_rate=rates[0] if alike else 1.0,
                levels=()
                if alike
                else tuple(LevelTerms(1.0, rate) if rate else LevelTerms(0.0) for rate in rates),
            )
        ]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: float) -> float:
        """Return the expected number of records in a step: fixed, never the realised number.

        With levels, ``records`` already counts each record by the sampling rate of its level.
        """
        return specs[0].sampling_rate * records

    def upload_noise(self, terms: UploadTerms) -> float | None:
        """Return σ of the sum of all steps."""
        return self._common_noise(terms)

    def train(self, context: ClientContext) -> Answer:
        """Sample, clip, sum, add noise and take a step, as often as planned."""
        (spec,) = context.client_plan.charges
        rates = tuple(terms.sampling_rate for terms in spec.levels) or spec.sampling_rate
        for _ in range(context.client_plan.steps):
            context.step(context.release(context.sampled_sum(rates, self.clipping_bound)))
        return Answer(context.update())
