"""The curve F from budgets to clipping bounds."""

from pacdp.curve.curve import Curve

__all__ = ["Curve"]
