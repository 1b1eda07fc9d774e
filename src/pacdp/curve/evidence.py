"""The evidence behind a fitted curve: the simulated grid, what was selected from it, its origin.

The field names are the keys of curve files.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from pacdp.config import Settings

Family = Literal["quadratic", "power", "piecewise"]
Rule = Literal["plateau", "argmax"]


class BoundChoice(Settings):
    """The clipping bound C* selected for one budget, and how certain the selection is."""

    bound: float
    spread: float
    """Standard error of ln C*, from the bootstrap over seeds and the asymmetry of the maximum."""
    low: float
    """Smallest bound that cannot be distinguished from the best one."""
    high: float
    """Largest bound that cannot be distinguished from the best one."""
    edge: bool
    """Whether C* is within one step of the grid's edge, so that the optimum may lie outside."""
    score: float
    """Expected score at C*."""


class FamilyFit(Settings):
    """The fit of one family of curves, or the reason why it was rejected."""

    coefficients: tuple[float, ...] | None = None
    r_squared: float | None = None
    """Coefficient of determination of C, as the paper reports it."""
    left_out: float | None = None
    """Root mean square error of ln C in leave-one-out cross-validation."""
    refused: str = ""


class Regret(Settings):
    """The score that F(ε) loses against the best bound of the grid at one budget."""

    epsilon: float
    bound: float
    best_of_grid: float
    score: float
    regret: float
    standard_error: float


class ProxyProvenance(Settings):
    """Where the public records of the simulation came from."""

    name: str = ""
    stands_for: str = ""
    made_by: str = ""
    source: str = ""
    sha256: str = ""


class RateChoices(Settings):
    """The bounds that would be selected under another learning rate, for each budget."""

    lr: float
    bounds: tuple[float, ...]
    product: tuple[float, ...]
    """lr·C*."""
    scores: tuple[float, ...]


class CurveEvidence(Settings):
    """Everything that a curve was fitted to.

    A curve whose coefficients were given has no evidence, and one that was derived from another
    curve's grid has only a part of it. What is missing is also missing from the file.
    """

    budgets: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    scores: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """The score matrix P: (seeds, budgets, bounds)."""
    metric: str = ""
    rule: Rule | None = None
    choices: tuple[BoundChoice, ...] = ()
    expected: tuple[float, ...] = ()
    """Expected score at F(ε) for each budget."""
    outliers: tuple[float, ...] = ()
    """Budgets that were excluded from the fit."""
    families: Mapping[str, FamilyFit] = {}
    regret: tuple[Regret, ...] = ()
    plan: Mapping[str, Any] = {}
    """The plan that was simulated."""
    unit: str = "record"
    proxy: ProxyProvenance = ProxyProvenance()
    version: str = ""
    rates: tuple[RateChoices, ...] = ()

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in handler(self).items() if k in self.model_fields_set}
