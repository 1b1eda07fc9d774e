"""What is promised: an ε never stands alone.

The meaning of an ε depends on which two data sets count as neighbours, on its δ, and on whether
it covers the whole training or one release of it. :class:`Guarantee` keeps all of them together,
so that no ε is printed, saved or returned without its adjacency.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pacdp.validation import member, not_negative, probability, single, word

DEFAULT_DELTA = 1e-5


class _Named(StrEnum):
    @classmethod
    def parse(cls, value: str) -> Self:
        """The member of that name; another name is refused with those that exist."""
        return cls(member(cls._parameter(), value, [item.value for item in cls]))

    @classmethod
    def _parameter(cls) -> str:
        return cls.__name__.lower()


class Adjacency(_Named):
    """Which data sets are neighbours. Size and batch plan are the same on both sides.

    >>> Adjacency.parse("replace-one").sensitivity
    2.0
    """

    ZERO_OUT = "zero-out"
    """One record is replaced by a null record, which contributes a zero gradient."""

    REPLACE_ONE = "replace-one"
    """One record is swapped for any other."""

    @property
    def sensitivity(self) -> float:
        """Sensitivity S of a sum of terms clipped to C, in units of C.

        Zeroing a record takes away one term of norm at most C; swapping it can also add one.
        """
        return 1.0 if self is Adjacency.ZERO_OUT else 2.0


class Scope(_Named):
    """What a budget covers."""

    TOTAL = "total"
    """Every release of the whole training together."""

    PER_RELEASE = "per-release"
    """Each release by itself, as the paper's experiments read their ε. The whole costs more."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (ε, δ) with the adjacency it holds for, what it covers, and who computed it.

    The same value states a client's budget and what a run certifies.

    >>> print(Guarantee(epsilon=0.5, delta=1e-5, adjacency=Adjacency.ZERO_OUT))
    ε = 0.5 at δ = 1e-05, zero-out (exact)
    >>> print(Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT, unit="patient"))
    ε = 0.5 at δ = 1e-05, zero-out of a patient (exact)
    """

    epsilon: float
    delta: float = DEFAULT_DELTA
    adjacency: Adjacency
    accountant: str = "exact"
    scope: Scope = Scope.TOTAL
    unit: str = "record"
    """What the neighbours differ in: one record, or all that belongs to one of these."""

    def __post_init__(self) -> None:
        # Plain floats, so that a saved guarantee reads back as it was.
        object.__setattr__(
            self, "epsilon", single("epsilon", not_negative("epsilon", self.epsilon))
        )
        object.__setattr__(self, "delta", single("delta", probability("delta", self.delta)))
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        object.__setattr__(self, "scope", Scope.parse(self.scope))
        word("unit", self.unit)

    def __str__(self) -> str:
        per = ", per release" if self.scope is Scope.PER_RELEASE else ""
        of = "" if self.unit == "record" else f" of a {self.unit}"
        return (
            f"ε = {self.epsilon:.6g} at δ = {self.delta:g}, "
            f"{self.adjacency}{of} ({self.accountant}{per})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        >>> Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT).to_dict()["adjacency"]
        'zero-out'
        """
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency.value,
            "accountant": self.accountant,
            "scope": self.scope.value,
            "unit": self.unit,
        }
