"""A curve for budgets that cover one release each, from one for budgets that cover the whole run.

Training sees a budget only through its noise z. So a grid that was trained at whole-run budgets is
also one of per-release budgets: each row belongs to the ε that its z gives to a single release.
"""

import numpy as np

from pacdp.curve import Curve, CurveEvidence, fit_curve_families
from pacdp.privacy import calibrate
from pacdp.privacy.gaussian import epsilon_for


def convert_to_per_release(curve: Curve, *, releases: int, classic: bool = False) -> Curve:
    """The same bounds at the same noise, by the ε of a single release of so many.

    ``classic`` reads it by the published formula, ε = √(2 ln(1.25/δ))/z.
    """
    evidence = curve.evidence
    plan = evidence.plan
    budgets = np.array(evidence.budgets)
    z = calibrate(epsilon=budgets, releases=releases, delta=plan["delta"]).z
    single = epsilon_for(1 / z, plan["delta"])
    if classic:
        single = np.sqrt(2 * np.log(1.25 / plan["delta"])) / z
    # Through every point of the old curve, at its new place.
    moved = fit_curve_families(
        single, [curve(value) for value in budgets], family="piecewise"
    ).curve
    accountant = "basic" if classic else plan["accountant"]
    # Selections and regret belong to the budgets of the original curve.
    moved_evidence = CurveEvidence(
        budgets=tuple(single.tolist()),
        bounds=evidence.bounds,
        seeds=evidence.seeds,
        scores=evidence.scores,
        metric=evidence.metric,
        plan={**plan, "scope": "per-release", "accountant": accountant},
        proxy=evidence.proxy,
        version=evidence.version,
    )
    return moved.model_copy(update={"evidence": moved_evidence})
