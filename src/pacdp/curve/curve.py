"""The curve F(ε), which maps a budget to a clipping bound.

A curve is public and fixed before any private record is read. It must be positive and finite on its
whole domain: the paper's quadratic for MNIST decreases beyond ε = 1.09 and is negative beyond 2.30.
Each curve therefore declares the domain it was fitted on, is checked there, and is held constant
outside.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError, model_validator
from scipy.interpolate import PchipInterpolator

from pacdp.arithmetic import (
    add_arithmetic_version,
    refuse_other_arithmetic,
    remove_arithmetic_version,
)
from pacdp.config import Settings, explain_validation_error
from pacdp.curve.evidence import CurveEvidence, Family
from pacdp.errors import DataError, InputError
from pacdp.storage import write_atomically
from pacdp.validation import require_positive_number


class Curve(Settings):
    """A family of functions with its coefficients, on a domain of budgets.

    - ``quadratic`` [α, β, γ]: αε² + βε + γ, as in the paper
    - ``power`` [a, b]: a·ε^b
    - ``piecewise`` [ε₁, C₁, ε₂, C₂, ...]: shape-preserving interpolation between these knots

    >>> curve = Curve(family="power", coefficients=(0.5, 0.25), domain=(0.01, 10.0))
    >>> curve(1.0), curve(100.0) == curve(10.0)
    (0.5, True)
    """

    family: Family
    coefficients: tuple[float, ...]
    domain: tuple[float, float] = (0.01, 10.0)
    evidence: CurveEvidence = CurveEvidence()
    """What the curve was fitted to; empty if its coefficients were given."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.domain
        if not 0 < low < high < math.inf:
            raise ValueError(f"domain {self.domain}: must be 0 < low < high")
        given, expected = len(self.coefficients), {"quadratic": 3, "power": 2}.get(self.family)
        if expected is not None and given != expected:
            raise ValueError(f"{self.family}: has {given} coefficients, must have {expected}")
        # Every family takes its extreme values at the ends of the domain, a vertex or a knot.
        points = [low, high]
        if self.family == "quadratic" and self.coefficients[0]:
            points.append(-self.coefficients[1] / (2 * self.coefficients[0]))
        if self.family == "piecewise":
            knots = self.coefficients[::2]
            if knots and not knots[0] > 0:
                raise ValueError("piecewise: budgets must be > 0")
            if given < 4 or given % 2 or any(a >= b for a, b in pairwise(knots)):
                raise ValueError("piecewise: must be pairs of budget and bound, budgets rising")
            points += knots
        points = [epsilon for epsilon in points if low <= epsilon <= high]
        values = _evaluate(self.family, self.coefficients, points)
        for epsilon, value in zip(points, values, strict=True):
            if not 0 < value < math.inf:
                raise ValueError(
                    f"{self.family} {list(self.coefficients)}: is {value:.4g} at "
                    f"ε = {epsilon:.4g}, must be positive and finite on {list(self.domain)}"
                )
        return self

    def __call__(self, epsilon: float) -> float:
        """Return the clipping bound for a budget; outside the domain, that of its nearest end."""
        low, high = self.domain
        inside = min(max(require_positive_number("epsilon", epsilon), low), high)
        return _evaluate_once(self.family, self.coefficients, inside)

    def expected_score(self, epsilon: float) -> float | None:
        """Return the score to expect on the proxy at a budget, or None without evidence.

        >>> Curve(family="power", coefficients=(0.5, 0.25)).expected_score(1.0) is None
        True
        """
        if not self.evidence.expected:
            return None
        budgets = [math.log(budget) for budget in self.evidence.budgets]
        at = math.log(require_positive_number("epsilon", epsilon))
        return float(np.interp(at, budgets, self.evidence.expected))

    def require_evidence(self) -> CurveEvidence:
        """Return the evidence, and refuse a curve without a grid of scores.

        >>> Curve(family="power", coefficients=(0.5, 0.25)).require_evidence()
        Traceback (most recent call last):
        ...
        pacdp.errors.InputError: curve: holds no grid of scores; pacdp fit makes one that does
        """
        if not self.evidence.scores:
            raise InputError("curve: holds no grid of scores; pacdp fit makes one that does")
        return self.evidence

    def save(self, path: Path) -> None:
        """Write the curve as JSON with a checksum of its content."""
        content = self._file_content()
        write_atomically(
            path, json.dumps({**content, "sha256": _checksum(content)}, indent=2) + "\n"
        )

    def _file_content(self) -> dict[str, Any]:
        content = self.model_dump(mode="json")
        # Only a fitted curve depends on how a release is computed.
        return add_arithmetic_version(content) if content["evidence"] else content

    @classmethod
    def load(
        cls, path: Path, *, advice: str = "pacdp fit EXPERIMENT --out FILE makes a new one"
    ) -> "Curve":
        """Read a file written by :meth:`save`.

        A modified file is refused, and so is a fit of another version; ``advice`` ends that
        message.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "curve.json"
        >>> Curve(family="power", coefficients=(0.5, 0.25)).save(path)
        >>> Curve.load(path).family
        'power'
        """
        try:
            content = json.loads(path.read_text())
            refuse_other_arithmetic(path, content, mark="evidence", advice=advice)
            checksum = content.pop("sha256")
            curve = cls.model_validate(remove_arithmetic_version(content))
        except ValidationError as error:
            raise DataError(
                f"{path}: is no curve ({explain_validation_error(error, cls)})"
            ) from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DataError(f"{path}: is no curve ({error})") from error
        if checksum != _checksum(curve._file_content()):
            raise DataError(f"{path}: is damaged, its checksum does not fit its content")
        return curve


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _evaluate(
    family: Family, coefficients: tuple[float, ...], budgets: Sequence[float]
) -> list[float]:
    if family == "quadratic":
        a, b, c = coefficients
        return [a * epsilon * epsilon + b * epsilon + c for epsilon in budgets]
    if family == "power":
        scale, exponent = coefficients
        return [scale * math.exp(min(exponent * math.log(e), 700)) for e in budgets]
    knots = [math.log(epsilon) for epsilon in coefficients[::2]]
    interpolate = PchipInterpolator(knots, coefficients[1::2], extrapolate=False)
    return [float(interpolate(min(max(math.log(e), knots[0]), knots[-1]))) for e in budgets]


@lru_cache(maxsize=4096)
def _evaluate_once(family: Family, coefficients: tuple[float, ...], epsilon: float) -> float:
    # Every client evaluates F in every round, and there are few distinct budgets.
    return _evaluate(family, coefficients, (epsilon,))[0]
