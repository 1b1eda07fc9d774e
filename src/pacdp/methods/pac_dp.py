"""PAC-DP: each client clips at F(ε_i)·λ(t)."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from pacdp.curve import Curve
from pacdp.methods.base import Method
from pacdp.schedule import Schedule


class PacDp(Method):
    """Personalised adaptive clipping: C_i^t = F(ε_i)·λ(t), from public things alone.

    >>> method = PacDp(curve=Curve(family="power", coefficients=(0.5, 0.25)))
    >>> method.bound(1.0, round=0, rounds=10), round(method.bound(1.0, round=8, rounds=10), 3)
    (0.5, 0.275)
    """

    name: ClassVar[str] = "pac-dp"
    needs: ClassVar[tuple[str, ...]] = ("curve",)

    curve: Curve = Field(description="F, from a budget to a clipping bound, or a file.")
    schedule: Schedule = Field(Schedule(), description="λ(t).")

    @field_validator("curve", mode="before")
    @classmethod
    def _from_file(cls, given: Any) -> Any:
        return Curve.load(Path(given)) if isinstance(given, str | Path) else given

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """F(ε_i)·λ(t)."""
        return self.curve(epsilon) * self.schedule.factor(round, rounds=rounds)
