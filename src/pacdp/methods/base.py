"""The contract that every method obeys, and the training that most of them share.

A method says which budgets are used, what a participation releases and at what noise, what a client
does, and what the server learns from it. It is a frozen value made of plain settings. The client
hands it a :class:`ClientContext`, with which records can be read, sums clipped and noise added;
what it returns leaves only if it was released. All that is in a method is public, and decided
before any private record is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from pydantic import PositiveInt
from torch import Tensor

from pacdp.clipping import Bounded
from pacdp.config import Settings
from pacdp.privacy import Adjacency, Scope, calibrate

Tensors = dict[str, Tensor]
# What a method keeps on the server, from noised values alone. It is sent to every client.
SharedState = Mapping[str, Any]


class ReleaseSpec(Settings):
    """One kind of release that a participation makes, and how often it can touch one record."""

    noise_multiplier: float
    """σ/C."""
    sensitivity: float
    """S/C."""
    each: PositiveInt
    """So often in each participation."""
    sampling_rate: float = 1.0
    """With which each record is drawn, unseen by the server."""

    @property
    def z(self) -> float:
        """σ/S."""
        return self.noise_multiplier / self.sensitivity


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """What a client's noise is calibrated from, all of it public."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str | None
    scope: Scope
    participations: int
    """How often it answers at most."""
    passes: int
    """How often one participation goes over its records."""
    steps: int
    """Local steps in a participation."""
    records: int
    budgets: Sequence[float]
    """Everybody's."""


class PlannedClient(Protocol):
    """What a method may know of a client while it trains: its plan, all of it public."""

    @property
    def epsilon(self) -> float:
        """The budget that its noise is calibrated to."""

    @property
    def records(self) -> int:
        """How many it has."""

    @property
    def participations(self) -> int:
        """How often it answers at most."""

    @property
    def steps(self) -> int:
        """Local steps in a participation."""

    @property
    def divisor(self) -> float:
        """The public number by which a sum is divided."""

    @property
    def charges(self) -> Sequence[ReleaseSpec]:
        """What it releases."""


class ClientContext(Protocol):
    """One participation of one client, as its method sees it."""

    @property
    def client_id(self) -> int:
        """Its number."""

    @property
    def round(self) -> int:
        """t, from 0."""

    @property
    def rounds(self) -> int:
        """T."""

    @property
    def client_plan(self) -> PlannedClient:
        """The client's part of the plan."""

    @property
    def shared_state(self) -> SharedState:
        """What the method keeps on the server."""

    def batches(self) -> Iterator[Tensor]:
        """The records of each local step, by their position: each record once in each pass."""

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        """The clipped sum of the batch's gradients, which carries its own sensitivity."""

    def sampled_sum(self, rate: float, bound: float) -> Bounded:
        """The clipped sum over a Poisson sample: each record (or unit) with this probability.

        Nobody outside can tell which were drawn, not even from the time it takes.
        """

    def count_within(self, batch: Tensor, bound: float) -> Bounded:
        """How many of the batch's gradients are no longer than the bound, centred."""

    def clipped_update(self, bound: float) -> Bounded:
        """How the local model differs from the broadcast one, clipped as a whole."""

    def clipped_model(self, bound: float) -> Bounded:
        """The local model itself, clipped as a whole."""

    def norms(self, batch: Tensor) -> Tensor:
        """The lengths of the batch's gradients. Nothing derived from them may leave unpaid."""

    def plain_mean(self, batch: Tensor) -> Tensors:
        """The batch's mean gradient as it is. What is trained with it cannot leave as it is."""

    def release(self, value: Bounded, *, index: int = 0, divisor: float | None = None) -> Tensors:
        """The value with a charge's noise, over the public divisor. Refused unless paid for."""

    def step(self, gradient: Tensors) -> None:
        """One step of the client's optimiser."""

    def update(self) -> Tensors:
        """How the local model now differs from the broadcast one."""

    def update_to(self, model: Tensors) -> Tensors:
        """How a released model differs from the broadcast one."""


@dataclass(frozen=True)
class Answer:
    """What a participation sends: the update, and other values that were released."""

    update: Tensors
    released: Sequence[Tensors] = field(default_factory=tuple)


class Method(Settings):
    """A method of private federated training. Subclasses say what is special about them."""

    name: ClassVar[str]
    private: ClassVar[bool] = True
    """Whether there is an ε at all."""
    label: ClassVar[str] = ""
    """A mark for ledgers where ε is not the cost of the whole training."""
    required_settings: ClassVar[tuple[str, ...]] = ()
    """Settings without which it cannot run."""
    bound_setting: ClassVar[str] = "clipping_bound"
    """The setting that holds its clipping bound, if it has one."""
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Settings of its own that a search tries, with their values, the simplest first."""

    @classmethod
    def has_bound(cls) -> bool:
        """Whether there is a clipping bound to be searched."""
        return cls.bound_setting in cls.model_fields

    @classmethod
    def settings_at(cls, bound: float | None, searched: Mapping[str, Any]) -> dict[str, Any]:
        """The settings at a point of a search: a bound, and values of those that are searched."""
        return ({} if bound is None else {cls.bound_setting: bound}) | dict(searched)

    def budgets(self, budgets: Sequence[float]) -> list[float]:
        """The ε that each client's noise is calibrated to; never more than its own."""
        return list(budgets)

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C_i^t as planned. It depends on the budget and the round alone."""
        raise NotImplementedError

    def current_bound(self, planned: float, shared_state: SharedState, client: int) -> float:
        """The bound that a client uses at the start of a round; usually the planned one."""
        return planned

    def adapted_bound(self, shared_state: SharedState) -> float | None:
        """The bound that noised values have led to, the median of the clients'; usually none."""
        return None

    def specify_releases(self, request: CalibrationRequest) -> list[ReleaseSpec]:
        """What each participation releases, at the noise the budget asks for."""
        return [clipped_gradients(request)]

    def divisor(self, usual: float, specs: Sequence[ReleaseSpec], records: int) -> float:
        """The public number by which a sum is divided; usually the records of a batch."""
        return usual

    def broadcast_noise(
        self, *, rounds: int, clients: Sequence[PlannedClient], delta: float
    ) -> float:
        """σ of noise that the server adds to the models it sends; usually none."""
        return 0.0

    def initial_state(self, clients: int) -> SharedState:
        """What the method keeps on the server before the first round."""
        return {}

    def check_plan(self, terms: Mapping[str, Any]) -> None:
        """Refuse a plan that the method's settings were not made for."""

    def check_state(self, shared_state: SharedState, client: int) -> None:
        """Refuse what a server sent if it cannot be used, before anything is paid."""

    def update_state(
        self,
        shared_state: SharedState,
        replies: Mapping[int, tuple[PlannedClient, Sequence[Tensors]]],
    ) -> SharedState:
        """What it keeps after a round, from what clients released beside their updates."""
        return shared_state

    def train(self, context: ClientContext) -> Answer:
        """One participation: clip, sum, noise and step through the local batches.

        The sum carries the sensitivity of the bound that clipped it, and ``context.release`` scales
        the noise by nothing else.
        """
        bound = self.bound(context.client_plan.epsilon, round=context.round, rounds=context.rounds)
        for batch in context.batches():
            context.step(context.release(context.clipped_sum(batch, bound)))
        return Answer(context.update())


def clipped_gradients(request: CalibrationRequest, *, share: float = 1.0) -> ReleaseSpec:
    """The releases of clipped sums that a share of the budget pays for, one in each pass.

    A share β of a Gaussian budget is β·μ², so the noise grows by 1/√β.
    """
    return _clipped_gradients(
        *(request.epsilon, request.delta, request.passes, request.participations),
        *(request.adjacency, request.accountant, request.scope, share),
    )


@lru_cache(maxsize=4096)
def _clipped_gradients(
    epsilon: float,
    delta: float,
    passes: int,
    participations: int,
    adjacency: Adjacency,
    accountant: str | None,
    scope: Scope,
    share: float,
) -> ReleaseSpec:
    # One for all who ask for the same.
    made = calibrate(
        epsilon=epsilon,
        delta=delta,
        releases=passes * participations,
        adjacency=adjacency,
        accountant=accountant,
        scope=scope,
    ).release()
    return ReleaseSpec(
        noise_multiplier=made.noise_multiplier / share**0.5,
        sensitivity=made.sensitivity,
        each=passes,
    )
