"""Privacy guarantees: ε and δ with the adjacency, scope and unit that give them a meaning.

The meaning of an ε depends on which two data sets count as neighbours, on its δ, and on whether
it covers the whole run or one release of it. :class:`Guarantee` keeps all of them together,
so that no ε is printed, saved or returned without its adjacency.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from pacdp.validation import (
    require_member,
    require_name,
    require_nonnegative,
    require_probability,
    require_scalar,
)

DEFAULT_DELTA = 1e-5


class _Named(StrEnum):
    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the member of that name; any other name is refused with those that exist."""
        return cls(require_member(cls.__name__.lower(), value, [item.value for item in cls]))


class Adjacency(_Named):
    """Which data sets are neighbours; both have the same size and batch plan.

    ``zero-out``: one record is replaced by a null record, which contributes a zero gradient.
    ``replace-one``: one record is swapped for any other.

    >>> Adjacency.parse("replace-one").sensitivity
    2.0
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def sensitivity(self) -> float:
        """Sensitivity S of a sum of terms clipped to C, in units of C.

        Zeroing a record takes away one term of norm at most C; swapping it can also add one.
        """
        return 1.0 if self is Adjacency.ZERO_OUT else 2.0


class Scope(_Named):
    """What a budget covers.

    ``total``: all releases of the training run together. ``per-release``: each release by
    itself, which is how the paper's experiments use their ε; the whole run costs more.
    """

    TOTAL = "total"
    PER_RELEASE = "per-release"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (ε, δ) with the adjacency it holds for, what it covers, and the accountant used.

    The same type states a client's budget and what a run certifies. ``unit`` is what neighbours
    differ in: one record, or everything that belongs to one patient, say.

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

    def __post_init__(self) -> None:
        # Plain floats, so that a saved guarantee reads back as it was.
        checked = {
            "epsilon": require_scalar("epsilon", require_nonnegative("epsilon", self.epsilon)),
            "delta": require_scalar("delta", require_probability("delta", self.delta)),
            "adjacency": Adjacency.parse(self.adjacency),
            "scope": Scope.parse(self.scope),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        require_name("unit", self.unit)

    def __str__(self) -> str:
        per = ", per release" if self.scope is Scope.PER_RELEASE else ""
        of = "" if self.unit == "record" else f" of a {self.unit}"
        return (
            f"ε = {self.epsilon:.6g} at δ = {self.delta:g}, "
            f"{self.adjacency}{of} ({self.accountant}{per})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        >>> Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT).to_dict()["adjacency"]
        'zero-out'
        """
        names = {"adjacency": self.adjacency.value, "scope": self.scope.value}
        return asdict(self) | names
