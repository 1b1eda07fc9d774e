"""The contract that every method obeys, and the training that most of them share.

A method says which budgets are used, which clipping bound holds in a round, what a participation
releases, and what a client does. It is a frozen value made of plain settings. The client hands it a
:class:`Work`, with which records can be read, sums clipped and noise added, and nothing can leave
that was not paid for. All that is in a method is public, and decided before any private record is
read.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from pacdp.clipping import Bounded
from pacdp.privacy import Adjacency, Release, Scope, calibrate
from pacdp.settings import Settings

Tensors = dict[str, Tensor]


class Task(Protocol):
    """What a method may know of a client: its plan, all of it public."""

    @property
    def epsilon(self) -> float:
        """The budget that its noise is calibrated to."""


class Work(Protocol):
    """One participation of one client, as its method sees it."""

    @property
    def round(self) -> int:
        """t, from 0."""

    @property
    def rounds(self) -> int:
        """T."""

    @property
    def task(self) -> Task:
        """The client's part of the plan."""

    def batches(self) -> Iterator[Tensor]:
        """The records of each local step, by their position: each record once in each pass."""

    def clipped_sum(self, batch: Tensor, bound: float) -> Bounded:
        """The clipped sum of the batch's gradients, which carries its own sensitivity."""

    def plain_mean(self, batch: Tensor) -> Tensors:
        """The batch's mean gradient as it is. For methods without a guarantee."""

    def release(self, value: Bounded) -> Tensors:
        """The value with the planned noise, over the public divisor. Refused unless paid for."""

    def step(self, gradient: Tensors) -> None:
        """One step of the client's optimiser."""

    def update(self) -> Tensors:
        """How the local model now differs from the broadcast one."""


class Method(Settings):
    """A method of private federated training. Subclasses say what is special about them."""

    name: ClassVar[str]
    private: ClassVar[bool] = True
    """Whether there is an ε at all."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Settings without which it cannot run."""

    def budgets(self, budgets: Sequence[float]) -> list[float]:
        """The ε that each client's noise is calibrated to; never more than its own."""
        return list(budgets)

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """C_i^t. It depends on the budget and the round alone."""
        raise NotImplementedError

    def release(
        self,
        *,
        epsilon: float,
        delta: float,
        releases: int,
        adjacency: Adjacency,
        accountant: str | None,
        scope: Scope,
        unit: str,
    ) -> Release:
        """All releases of a client over the whole training, at the noise its budget asks for."""
        made = calibrate(
            epsilon=epsilon,
            delta=delta,
            releases=releases,
            adjacency=adjacency,
            accountant=accountant,
            scope=scope,
        )
        return made.release(unit=unit)

    def train(self, work: Work) -> Tensors:
        """One participation: clip, sum, noise and step through the local batches.

        The sum carries the sensitivity of the bound that clipped it, and ``work.release`` scales
        the noise by nothing else.
        """
        bound = self.bound(work.task.epsilon, round=work.round, rounds=work.rounds)
        for batch in work.batches():
            work.step(work.release(work.clipped_sum(batch, bound)))
        return work.update()
