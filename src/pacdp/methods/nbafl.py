"""NbAFL (Wei et al. 2020): noise once per upload, corrected and as published."""

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from pacdp.config import Real
from pacdp.methods.base import Answer, ClientContext
from pacdp.methods.client_plan import CalibrationRequest, ClientPlan, ReleaseSpec
from pacdp.methods.fedavg import train_plainly
from pacdp.methods.fixed import Fixed
from pacdp.methods.uploads import UploadTerms
from pacdp.privacy import calibrate


class Nbafl(Fixed):
    """Train locally without noise, clip the update to C as a whole, and add noise once.

    One record can turn a clipped update into any other of that norm, so its sensitivity is 2C under
    either adjacency. Each participation makes one release, calibrated exactly.

    >>> Nbafl(clipping_bound=2.0).bound(0.1, round=0, rounds=5)
    2.0
    """

    name: ClassVar[str] = "nbafl"
    supports_record_budgets: ClassVar[bool] = False

    clipping_bound: Real = Field(
        1.0, gt=0, allow_inf_nan=False, description="Clipping bound C of the whole upload."
    )

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return one upload per participation."""
        z = calibrate(
            epsilon=request.epsilon,
            delta=request.delta,
            releases=request.participations,
            accountant=request.accountant,
            scope=request.scope,
        ).z
        return [ReleaseSpec(noise_multiplier=2 * float(z), sensitivity=2.0, each=1)]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: float) -> float:
        """Return 1: an upload is not divided."""
        return 1.0

    def upload_noise(self, terms: UploadTerms) -> float:
        """Return σ of the only release."""
        return terms.release_noise(self.clipping_bound)

    def train(self, context: ClientContext) -> Answer:
        """Train without noise, and release the clipped update."""
        train_plainly(context)
        return Answer(context.release(context.clipped_update(self.clipping_bound)))


class NbaflOriginal(Nbafl):
    """NbAFL with the published noise: the clipped model itself is noised and sent.

    σ = c·L·(2C/m)/ε with c = √(2 ln(1.25/δ)), L uploads and m records. The formula assumes that one
    record moves a clipped model by at most 2C/m, which holds for no model that was trained on it.
    The ledger is charged the true cost of the whole run, which can be thousands, and its entries
    carry the label.

    >>> NbaflOriginal().label
    'nbafl-original'
    """

    name: ClassVar[str] = "nbafl-original"
    label: ClassVar[str] = "nbafl-original"

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return one upload per participation, with published noise and true sensitivity."""
        c = math.sqrt(2 * math.log(1.25 / request.delta))
        noise = c * request.participations * 2 / (request.records * request.epsilon)
        return [ReleaseSpec(noise_multiplier=noise, sensitivity=2.0, each=1)]

    def broadcast_noise(self, *, rounds: int, clients: Sequence[ClientPlan], delta: float) -> float:
        """Return σ = 2cC·√(T² − L²N)/(m·N·ε) if T > L·√N, else 0.

        If clients differ, the smallest m and ε are used.
        """
        uploads = max(client.participations for client in clients)
        gap = rounds**2 - uploads**2 * len(clients)
        if gap <= 0:
            return 0.0
        c = math.sqrt(2 * math.log(1.25 / delta))
        records = min(client.records for client in clients)
        epsilon = min(client.epsilon for client in clients)
        return 2 * c * self.clipping_bound * math.sqrt(gap) / (records * len(clients) * epsilon)

    def train(self, context: ClientContext) -> Answer:
        """Train without noise, and release the clipped model."""
        train_plainly(context)
        model = context.release(context.clipped_model(self.clipping_bound))
        return Answer(context.update_to(model))
