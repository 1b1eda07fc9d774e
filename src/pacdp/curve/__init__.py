"""The curve F(ε): selecting a clipping bound for each budget, fitting a curve, and its file."""

from pacdp.curve.bound_selection import select_bound, select_bounds
from pacdp.curve.curve import Curve
from pacdp.curve.evidence import BoundChoice, CurveEvidence, FamilyFit
from pacdp.curve.fitting import FamilyComparison, fit_curve_families

__all__ = [
    "BoundChoice",
    "Curve",
    "CurveEvidence",
    "FamilyComparison",
    "FamilyFit",
    "fit_curve_families",
    "select_bound",
    "select_bounds",
]
