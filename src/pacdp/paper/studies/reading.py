"""Convert a curve for budgets of the whole run to one for budgets of a single release.

Training depends on a budget only through the noise z. So a grid that was trained with whole-run
budgets also holds for per-release budgets: each row belongs to the ε of a release with its z.
"""

import numpy as np

from pacdp.curve import Curve, CurveEvidence, fit_curve_families
from pacdp.privacy import calibrate
from pacdp.privacy.gaussian import epsilon_for


def convert_to_per_release(curve: Curve, *, releases: int, classic: bool = False) -> Curve:
    """Assign the bounds to the ε that a single one of ``releases`` has at the same noise.

    ``classic`` computes it by the published formula, ε = √(2 ln(1.25/δ))/z.
    """
    evidence = curve.evidence
    plan = evidence.plan
    budgets = np.array(evidence.budgets)
    z = calibrate(epsilon=budgets, releases=releases, delta=plan["delta"]).z
    single = epsilon_for(1 / z, plan["delta"])
    if classic:
        single = np.sqrt(2 * np.log(1.25 / plan["delta"])) / z
    # Through every point of the original curve, moved to its new budget.
    moved = fit_curve_families(
        single, [curve(value) for value in budgets], family="piecewise"
    ).curve
    accountant = "basic" if classic else plan["accountant"]
    # Selections and regret belong to the budgets of the original curve.
    kept = ("bounds", "seeds", "scores", "metric", "proxy", "version")
    moved_evidence = CurveEvidence(
        budgets=tuple(single.tolist()),
        plan={**plan, "scope": "per-release", "accountant": accountant},
        **{name: getattr(evidence, name) for name in kept},
    )
    return moved.model_copy(update={"evidence": moved_evidence})
