"""The interface of a method, and the local training loop that most methods share.

A method is a frozen value of plain settings. It decides which budgets are used, what a client
releases in each participation and with how much noise, how a client trains, and what the server
learns from the releases. All of this is public and decided before any private record is read. While
it trains, a method accesses records only through a :class:`ClientContext`, and the client sends
only what was released there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from torch import Tensor

from pacdp.clipping import Bounded
from pacdp.config import Settings
from pacdp.methods.client_plan import CalibrationRequest, ClientPlan, ReleaseSpec
from pacdp.methods.uploads import UploadTerms
from pacdp.privacy import LevelTerms, Release, calibrate

Tensors = dict[str, Tensor]
# A method's state on the server, computed from noised values only and sent to every client.
SharedState = Mapping[str, Any]


class ClientContext(Protocol):
    """What a method can do with a client's records in one participation."""

    @property
    def client_id(self) -> int:
        """The client's position in the plan."""

    @property
    def client_plan(self) -> ClientPlan:
        """The client's part of the plan."""

    @property
    def round(self) -> int:
        """t, from 0."""

    @property
    def rounds(self) -> int:
        """T."""

    @property
    def shared_state(self) -> SharedState:
        """The method's state on the server."""

    def batches(self) -> Iterator[Tensor]:
        """Yield the record indices of each local step; each record occurs once in each pass."""

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        """Compute the sum of the batch's clipped gradients, which carries its sensitivity."""

    def sampled_sum(self, rate: float | Sequence[float], bound: float) -> Bounded:
        """Compute the clipped sum over a Poisson sample of all records (or units).

        ``rate`` is one for all, or one for each budget level.
        Nobody outside can tell which were sampled, not even from the time it takes.
        """

    def count_within(self, batch: Tensor, bound: float) -> Bounded:
        """Count the gradients of the batch whose norm is at most the bound, centred."""

    def clipped_update(self, bound: float) -> Bounded:
        """Clip the difference between the local and the broadcast model as a whole."""

    def clipped_model(self, bound: float) -> Bounded:
        """Clip the local model as a whole."""

    def norms(self, batch: Tensor) -> Tensor:
        """Compute the gradient norms of the batch; only methods without a guarantee may."""

    def plain_mean(self, batch: Tensor) -> Tensors:
        """Compute the mean gradient without clipping.

        A model that was trained with it can only leave clipped as a whole and noised.
        """

    def release(self, value: Bounded, *, index: int = 0, divisor: float | None = None) -> Tensors:
        """Add the noise of the release spec at ``index``, and divide by the public divisor.

        Refused unless exactly this release was paid for.
        """

    def step(self, gradient: Tensors) -> None:
        """Take one step with the client's optimiser."""

    def update(self) -> Tensors:
        """Return the difference between the local and the broadcast model."""

    def update_to(self, model: Tensors) -> Tensors:
        """Return the difference between a released model and the broadcast one."""


@dataclass(frozen=True)
class Answer:
    """What a participation sends: the update, and further values that were released."""

    update: Tensors
    released: Sequence[Tensors] = field(default_factory=tuple)


class Method(Settings):
    """A method of private federated training. Subclasses override what is specific to them."""

    name: ClassVar[str]
    private: ClassVar[bool] = True
    """Whether the method has a guarantee."""
    supports_record_budgets: ClassVar[bool] = False
    """Whether records with different budgets are treated differently; if not, every record gets the
    smallest level."""
    label: ClassVar[str] = ""
    """A label for ledger entries where ε is not the cost of the whole training."""
    required_settings: ClassVar[tuple[str, ...]] = ()
    """Settings without a default."""
    bound_setting: ClassVar[str] = "clipping_bound"
    """The setting that holds the clipping bound, if there is one."""
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Further settings that a search tries, with their values, the simplest first."""

    @classmethod
    def has_bound(cls) -> bool:
        """Whether the method has a clipping bound to search for."""
        return cls.bound_setting in cls.model_fields

    @classmethod
    def settings_at(cls, bound: float | None, searched: Mapping[str, Any]) -> dict[str, Any]:
        """Return the method's settings at a point of a search."""
        return ({} if bound is None else {cls.bound_setting: bound}) | dict(searched)

    def budgets(self, budgets: Sequence[float]) -> list[float]:
        """Return the ε to which each client's noise is calibrated; never more than its budget."""
        return list(budgets)

    def level_budgets(self, levels: Sequence[float], units: Sequence[int]) -> list[float]:
        """Return the ε that is used of each budget level, where records have their own budgets.

        Never more than the level's; 0 leaves its records out. ``units`` are the numbers of records
        (or units) at each level.
        """
        if not self.supports_record_budgets:
            return [min(levels)] * len(levels)
        return [epsilon if count else 0.0 for epsilon, count in zip(levels, units, strict=True)]

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """Return the planned clipping bound C_i^t, which depends on budget and round only."""
        raise NotImplementedError

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """Return the bound that a client uses at the start of a round; usually the planned one."""
        return planned

    def adapted_bound(self, shared_state: SharedState) -> float | None:
        """Return the bound that noised statistics led to (the clients' median), if there is one."""
        return None

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """Return what each participation releases, with the noise that the budget requires."""
        return [clipped_gradients(request)]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: float) -> float:
        """Return the public number by which a sum is divided; usually the records of a batch.

        ``records`` is the client's number of records (or units). With budget levels, each counts by
        its clipping bound over the largest, times the sampling rate of its level.
        """
        return usual

    def broadcast_noise(self, *, rounds: int, clients: Sequence[ClientPlan], delta: float) -> float:
        """Return σ of the noise that the server adds to the models it sends; usually 0."""
        return 0.0

    def check_plan(self, terms: Mapping[str, Any]) -> None:
        """Refuse a plan for which the method's settings were not made."""

    def initial_state(self, clients: int) -> SharedState:
        """Return the method's state on the server before the first round."""
        return {}

    def check_state(self, shared_state: SharedState, client: int) -> None:
        """Refuse an unusable state that a server sent, before the client pays."""

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[ClientPlan, Sequence[Tensors]]],
    ) -> SharedState:
        """Return the state after a round, from what clients released beside their updates."""
        return shared_state

    def further_releases(self, client: ClientPlan) -> Sequence[Mapping[str, tuple[int, ...]]]:
        """Return names and shapes of the values released in addition to an update."""
        return ()

    def upload_noise(self, terms: UploadTerms) -> float | None:
        """Return σ of the noise in each coordinate of an update; None where it is not public.

        An update can be rounded to a fraction of it before it is sent
        (:func:`pacdp.federation.uploads.upload_step`). A method with its own training loop must
        override this, or its updates are not rounded.
        """
        if type(self).train is not Method.train:
            return None
        return self._common_noise(terms)

    def _common_noise(self, terms: UploadTerms) -> float | None:
        """Return σ of an update for which every step is clipped at the bound of the round."""
        bound = self.bound(terms.client_plan.epsilon, round=terms.round, rounds=terms.rounds)
        return terms.steps_noise([bound] * terms.client_plan.steps)

    def train(self, context: ClientContext) -> Answer:
        """Train on the local batches: clip, sum, add noise and take a step for each.

        The sum carries the sensitivity of the bound that clipped it, and ``context.release`` scales
        the noise by nothing else.
        """
        epsilon = context.client_plan.epsilon
        bound = self.bound(epsilon, round=context.round, rounds=context.rounds)
        for batch in context.batches():
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update())


# Clients with the same budget share a calibration.
_calibrate = lru_cache(maxsize=4096)(calibrate)


def clipped_gradients(request: CalibrationRequest, *, share: float = 1.0) -> ReleaseSpec:
    """Return one clipped sum per pass, with the noise that a share of the budget pays for.

    A share β of a Gaussian budget is β·μ², so the noise grows by 1/√β. All records share the noise.
    A record with a smaller budget of its own is clipped to a smaller bound, in proportion to its μ,
    so that the same noise costs it exactly its own budget.
    """

    def calibrate_for(epsilon: float) -> Release:
        return _calibrate(
            epsilon=epsilon,
            delta=request.delta,
            releases=request.passes * request.participations,
            adjacency=request.adjacency,
            accountant=request.accountant,
            scope=request.scope,
        ).release()

    release = calibrate_for(request.epsilon)
    noise = release.noise_multiplier
    levels = [
        # A level above the largest that is used has no records.
        LevelTerms(min(1.0, noise / calibrate_for(epsilon).noise_multiplier) if epsilon else 0.0)
        for epsilon in request.levels
    ]
    return ReleaseSpec(
        noise_multiplier=noise / share**0.5,
        sensitivity=release.sensitivity,
        each=request.passes,
        levels=() if all(terms.ratio == 1 for terms in levels) else tuple(levels),
    )
