"""PAC-DP: each client clips at F(ε_i)·λ(t)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from pacdp.curve import Curve
from pacdp.errors import InputError
from pacdp.methods.base import Method
from pacdp.schedule import Schedule


class PacDp(Method):
    """Personalised adaptive clipping: C_i^t = F(ε_i)·λ(t), computed from public values only.

    >>> method = PacDp(curve=Curve(family="power", coefficients=(0.5, 0.25)))
    >>> method.bound(1.0, round=0, rounds=10), round(method.bound(1.0, round=8, rounds=10), 3)
    (0.5, 0.275)
    """

    name: ClassVar[str] = "pac-dp"
    supports_record_budgets: ClassVar[bool] = True
    required_settings: ClassVar[tuple[str, ...]] = ("curve",)
    bound_setting: ClassVar[str] = "curve"
    searched: ClassVar[Mapping[str, Sequence[str]]] = {"schedule": ("none", "cosine")}

    curve: Curve = Field(
        description="F, which maps a budget ε to a clipping bound; or a curve file."
    )
    schedule: Schedule = Field(
        Schedule(), description="λ(t), a factor on the clipping bound that depends on the round."
    )
    allow_plan_mismatch: bool = Field(
        False, description="Whether to accept a curve that was fitted for a different plan."
    )

    @field_validator("curve", mode="before")
    @classmethod
    def _from_file(cls, given: Any) -> Any:
        return Curve.load(Path(given)) if isinstance(given, str | Path) else given

    @classmethod
    def settings_at(cls, bound: float | None, searched: Mapping[str, Any]) -> dict[str, Any]:
        """Return one bound for all budgets, until F is fitted, and a kind of schedule."""
        constant = {"family": "power", "coefficients": [bound, 0.0]}
        return {"curve": constant, "schedule": {"kind": searched["schedule"]}}

    def check_plan(self, terms: Mapping[str, Any]) -> None:
        """Refuse a plan other than the one that the curve was fitted for."""
        fitted_for = self.curve.evidence.plan
        if not fitted_for or self.allow_plan_mismatch:
            return
        # Budget levels of records are among the terms only where there are any.
        wanted = {"records": None, **terms, "schedule": self.schedule.model_dump(mode="json")}
        changes = differences({key: fitted_for.get(key) for key in wanted}, wanted)
        if changes:
            raise InputError(
                f"curve: was made for another plan ({'; '.join(changes)}); fit one for this plan, "
                "or say allow_plan_mismatch = true"
            )

    def bound(self, epsilon: float, *, round: int, rounds: int) -> float:  # noqa: A002
        """Return F(ε_i)·λ(t)."""
        return self.curve(epsilon) * self.schedule.factor(round, rounds=rounds)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Describe where two nested settings differ.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c is 3, but was 2']
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            change
            for key in dict.fromkeys([*new, *old])
            for change in differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
        ]
    return [] if old == new else [f"{where} is {new}, but was {old}"]
