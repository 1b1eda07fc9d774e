"""F(ε): which clipping bound a budget asks for. Public, and fixed before any record is read.

A curve must be positive and finite wherever it is asked. The paper's own quadratic for MNIST falls
after ε = 1.09 and is negative above 2.30, so a curve names the domain it was made for, is checked
on all of it, and answers outside as at the nearest end.
"""

import hashlib
import json
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.interpolate import PchipInterpolator

from pacdp.arithmetic import refuse_other_arithmetic, stamped, without_stamp
from pacdp.config import Settings
from pacdp.errors import DataError
from pacdp.storage import write_whole
from pacdp.validation import positive_number


class Curve(Settings):
    """A family and its coefficients, on a domain of budgets.

    - ``quadratic`` [α, β, γ]: αε² + βε + γ, the paper's
    - ``power`` [a, b]: a·ε^b
    - ``piecewise`` [ε₁, C₁, ε₂, C₂, ...]: shape-preserving through these knots

    >>> curve = Curve(family="power", coefficients=(0.5, 0.25), domain=(0.01, 10.0))
    >>> curve(1.0), curve(100.0) == curve(10.0)
    (0.5, True)
    """

    family: Literal["quadratic", "power", "piecewise"]
    coefficients: tuple[float, ...]
    domain: tuple[float, float] = (0.01, 10.0)
    evidence: dict[str, Any] = Field(default_factory=dict)
    """What the curve was made from."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        low, high = self.domain
        if not 0 < low < high < math.inf:
            raise ValueError(f"domain {self.domain}: must be 0 < low < high")
        wanted = {"quadratic": 3, "power": 2}.get(self.family)
        given = len(self.coefficients)
        if wanted is not None and given != wanted:
            raise ValueError(f"{self.family}: has {given} coefficients, must have {wanted}")
        if self.family == "piecewise":
            knots = self.coefficients[::2]
            if knots and not knots[0] > 0:
                raise ValueError("piecewise: budgets must be > 0")
            if given < 4 or given % 2 or any(a >= b for a, b in pairwise(knots)):
                raise ValueError("piecewise: must be pairs of budget and bound, budgets rising")
        function = _function(self.family, self.coefficients)
        # Each family has its least and largest values at the ends, at a vertex or at knots.
        points = [low, high]
        if self.family == "quadratic" and self.coefficients[0]:
            points.append(-self.coefficients[1] / (2 * self.coefficients[0]))
        if self.family == "piecewise":
            points += self.coefficients[::2]
        points = [epsilon for epsilon in points if low <= epsilon <= high]
        for epsilon in points:
            if not 0 < function(epsilon) < math.inf:
                raise ValueError(
                    f"{self.family} {list(self.coefficients)}: is {function(epsilon):.4g} at "
                    f"ε = {epsilon:.4g}, must be positive and finite on {list(self.domain)}"
                )
        return self

    def __call__(self, epsilon: float) -> float:
        """C* for this budget; outside the domain, that of its nearest end."""
        low, high = self.domain
        wanted = min(max(positive_number("epsilon", epsilon), low), high)
        return _value(self.family, self.coefficients, wanted)

    def expected(self, epsilon: float) -> float | None:
        """The score that a budget buys on the proxy; None where the curve holds no grid.

        >>> Curve(family="power", coefficients=(0.5, 0.25)).expected(1.0) is None
        True
        """
        budgets, values = self.evidence.get("budgets"), self.evidence.get("expected")
        if budgets is None or values is None:
            return None
        wanted = math.log(positive_number("epsilon", epsilon))
        return float(np.interp(wanted, [math.log(one) for one in budgets], values))

    def save(self, path: Path) -> None:
        """Write it as JSON with a checksum over its content."""
        content = self._content()
        write_whole(path, json.dumps({**content, "sha256": _sum(content)}, indent=2) + "\n")

    def _content(self) -> dict[str, Any]:
        """What a file holds. Only a fitted curve depends on how a release is computed."""
        content = self.model_dump(mode="json")
        return stamped(content) if self.evidence else content

    @classmethod
    def load(
        cls, path: Path, *, anew: str = "pacdp fit EXPERIMENT --out FILE makes a new one"
    ) -> "Curve":
        """Read what :meth:`save` wrote; a changed file, or a fit of another version, is refused.

        ``anew`` is the advice that is given when a file of another version is refused.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "curve.json"
        >>> Curve(family="power", coefficients=(0.5, 0.25)).save(path)
        >>> Curve.load(path).family
        'power'
        """
        try:
            content = json.loads(path.read_text())
            refuse_other_arithmetic(path, content, mark="evidence", anew=anew)
            noted = content.pop("sha256")
            curve = cls.model_validate(without_stamp(content))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise DataError(f"{path}: is no curve ({error})") from error
        if noted != _sum(curve._content()):
            raise DataError(f"{path}: is damaged, its checksum does not fit its content")
        return curve


def _sum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=256)
def _function(family: str, values: tuple[float, ...]) -> Callable[[float], float]:
    if family == "quadratic":
        a, b, c = values
        return lambda epsilon: a * epsilon * epsilon + b * epsilon + c
    if family == "power":
        scale, exponent = values
        return lambda epsilon: scale * math.exp(min(exponent * math.log(epsilon), 700))
    knots, bounds = [math.log(e) for e in values[::2]], values[1::2]
    through = PchipInterpolator(knots, bounds, extrapolate=False)
    return lambda epsilon: float(through(min(max(math.log(epsilon), knots[0]), knots[-1])))


@lru_cache(maxsize=4096)
def _value(family: str, values: tuple[float, ...], epsilon: float) -> float:
    # Every client asks in every round, and there are few budgets.
    return _function(family, values)(epsilon)
