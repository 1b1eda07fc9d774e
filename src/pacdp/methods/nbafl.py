"""NbAFL (Wei et al. 2020): noise once on each upload, as published and as it must be."""

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.methods.base import (
    Answer,
    CalibrationRequest,
    ClientContext,
    Method,
    PlannedClient,
    ReleaseSpec,
)
from pacdp.privacy import calibrate


class Nbafl(Method):
    """Train locally without noise, clip the update to C, and add noise once.

    One record can turn a clipped update into any other of that length, so its sensitivity is 2C
    under either adjacency. One release a participation, calibrated exactly.

    >>> Nbafl(clipping_bound=2.0).bound(0.1, round=0, rounds=5)
    2.0
    """

    name: ClassVar[str] = "nbafl"

    clipping_bound: Real = Field(1.0, gt=0, allow_inf_nan=False, description="C of the upload.")

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C, whatever the budget and the round."""
        return self.clipping_bound

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """One upload a participation."""
        z = calibrate(
            epsilon=request.epsilon,
            delta=request.delta,
            releases=request.participations,
            accountant=request.accountant,
            scope=request.scope,
        ).z
        return [ReleaseSpec(noise_multiplier=2 * float(z), sensitivity=2.0, each=1)]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: int) -> float:
        """An upload is sent as it is."""
        return 1.0

    def train(self, context: ClientContext) -> Answer:
        """Ordinary local training, and one noised upload."""
        for batch in context.batches():
            context.step(context.plain_mean(batch))
        return Answer(context.release(context.clipped_update(self.clipping_bound)))


class NbaflOriginal(Nbafl):
    """The weights clipped and noised by the formula as published.

    σ = c·L·(2C/m)/ε with c = √(2 ln(1.25/δ)), L uploads and m records. It takes one record to move
    a clipped model by 2C/m, which holds for no model that was trained on it: the ledger is charged
    what the whole run really costs, which can be thousands, and its rows say so.

    >>> NbaflOriginal().label
    'nbafl-original'
    """

    name: ClassVar[str] = "nbafl-original"
    label: ClassVar[str] = "nbafl-original"

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """One upload a participation, at the published noise and the true sensitivity."""
        c = math.sqrt(2 * math.log(1.25 / request.delta))
        noise = c * request.participations * 2 / (request.records * request.epsilon)
        return [ReleaseSpec(noise_multiplier=noise, sensitivity=2.0, each=1)]

    def broadcast_noise(
        self, *, rounds: int, clients: Sequence[PlannedClient], delta: float
    ) -> float:
        """σ = 2cC·√(T² − L²N)/(m·N·ε) where T > L·√N: more looks at the model than uploads pay for.

        With clients that differ, the smallest m and ε stand for all.
        """
        uploads = max(client.participations for client in clients)
        gap = rounds**2 - uploads**2 * len(clients)
        if gap <= 0:
            return 0.0
        c = math.sqrt(2 * math.log(1.25 / delta))
        fewest = min(client.records for client in clients)
        least = min(client.epsilon for client in clients)
        return 2 * c * self.clipping_bound * math.sqrt(gap) / (fewest * len(clients) * least)

    def train(self, context: ClientContext) -> Answer:
        """Ordinary local training, and the noised model itself."""
        for batch in context.batches():
            context.step(context.plain_mean(batch))
        model = context.release(context.clipped_model(self.clipping_bound))
        return Answer(context.update_to(model))
