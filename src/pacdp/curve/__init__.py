"""The curve F(ε): selecting a clipping bound for each budget, fitting a curve, and its file."""

from pacdp.curve.curve import Curve
from pacdp.curve.evidence import CurveEvidence, FamilyFit, ThresholdChoice
from pacdp.curve.fitting import FamilyComparison, fit_curve_families
from pacdp.curve.threshold_selection import select_threshold, select_thresholds

__all__ = [
    "Curve",
    "CurveEvidence",
    "FamilyComparison",
    "FamilyFit",
    "ThresholdChoice",
    "fit_curve_families",
    "select_threshold",
    "select_thresholds",
]
