"""A curve for budgets that cover one release each, from one for budgets that cover the whole run.

Training sees a budget only through its noise z. So a grid that was trained at whole-run budgets is
also one of per-release budgets: each row belongs to the ε that its z gives to a single release.
"""

import numpy as np

from pacdp.curve import Curve, fit
from pacdp.privacy import calibrate
from pacdp.privacy.gaussian import epsilon_for


def per_release(curve: Curve, *, releases: int, classic: bool = False) -> Curve:
    """The same bounds at the same noise, by the ε of a single release of so many.

    ``classic`` reads it by the published formula, ε = √(2 ln(1.25/δ))/z.
    """
    evidence = curve.evidence
    plan = evidence["plan"]
    budgets = np.array(evidence["budgets"])
    z = calibrate(epsilon=budgets, releases=releases, delta=plan["delta"]).z
    single = epsilon_for(1 / z, plan["delta"])
    if classic:
        single = np.sqrt(2 * np.log(1.25 / plan["delta"])) / z
    # Through every point of the old curve, at its new place.
    moved = fit(single, [curve(value) for value in budgets], family="piecewise").curve
    # In this order always: a set would change the file from run to run.
    kept = ("scores", "bounds", "seeds", "metric", "proxy", "version")
    return moved.model_copy(
        update={
            "evidence": {
                **{name: evidence[name] for name in kept},
                "budgets": single.tolist(),
                "plan": {
                    **plan,
                    "scope": "per-release",
                    "accountant": "basic" if classic else plan["accountant"],
                },
            }
        }
    )
