"""F(ε): the choice of a bound for each budget, the families, and the file."""

from pacdp.curve.curve import Curve
from pacdp.curve.fitting import Fit, Fitted, fit
from pacdp.curve.threshold_selection import Choice, choose

__all__ = ["Choice", "Curve", "Fit", "Fitted", "choose", "fit"]
