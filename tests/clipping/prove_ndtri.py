"""Prove how far SciPy's ``ndtri`` can be from -Q⁻¹, for every float and not only for samples.

Run as ``python -m tests.clipping.prove_ndtri``; it takes some seconds, and needs python-flint
(``pip install python-flint``), which nothing else in this repository does. It prints the bounds it
has proved and fails if they are above those that ``pacdp.clipping.rounded_gaussian`` relies on.

Q(x) = 1 - Φ(x) is the upper tail, φ the density, u = 2^-53. The proof is in ball arithmetic: what
it prints are upper bounds over whole intervals, with the rounding of the proof itself included.

Proved, for the formulas of Cephes with SciPy's coefficients, rounded to float64:

* their distance from -Φ⁻¹ in real arithmetic, for every p from 2^-65 to ½, by Taylor models;
* what rounding adds, operation by operation, whichever products and sums are fused;
* how much -Φ⁻¹ varies over an interval of tail probabilities, and from the rounding of its middle;
* the error of the expansions of Q in the second stage.

Assumed: IEEE float64 with rounding to nearest; the polynomials by Horner's rule, as in the source,
which no compiler may reorder without leave; log and sqrt with at most two units in the last place.
That the installed SciPy is these formulas is checked at 200 000 points, not proved.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_series, ctx
from scipy.special import ndtri

from pacdp.clipping import rounded_gaussian
from pacdp.clipping.rounded_gaussian import GUARD, NEAR

# The coefficients of Cephes and SciPy, highest power first; the Q begin with a 1.
P0 = (
    *(-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1),
    *(1.39312609387279679503e1, -1.23916583867381258016e0),
)
Q0 = (
    *(1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1),
    *(-2.25462687854119370527e2, 2.00260212380060660359e2, -8.20372256168333339912e1),
    *(1.59056225126211695515e1, -1.18331621121330003142e0),
)
P1 = (
    *(4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1),
    *(4.40805073893200834700e1, 1.46849561928858024014e1, 2.18663306850790267539e0),
    *(-1.40256079171354495875e-1, -3.50424626827848203418e-2, -8.57456785154685413611e-4),
)
Q1 = (
    *(1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1),
    *(1.50425385692907503408e1, 2.50464946208309415979e0, -1.42182922854787788574e-1),
    *(-3.80806407691578277194e-2, -9.33259480895457427372e-4),
)
P2 = (
    *(3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0),
    *(1.33303460815807542389e0, 2.01485389549179081538e-1, 1.23716634817820021358e-2),
    *(3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9),
)
Q2 = (
    *(1.0, 6.02427039364742014255e0, 3.67983563856160859403e0, 1.37702099489081330271e0),
    *(2.16236993594496635890e-1, 1.34204006088543189037e-2, 3.28014464682127739104e-4),
    *(2.89247864745380683936e-6, 6.79019408009981274425e-9),
)
ROOT = 2.50662827463100050242e0
CENTRAL = 0.13533528323661269189

U = arb(2) ** -53
# Each formula is examined a little beyond where it is used: the program chooses by rounded values.
OVERLAP = 2.0**-20
ORDER = 16


def upper(value: arb) -> arb:
    """The largest absolute value of a ball, as an exact number."""
    return arb(value.abs_upper())


def ball(low: float, high: float) -> arb:
    middle = (arb(low) + arb(high)) / 2
    return arb(middle, upper(arb(high) - middle))


def pieces(low: float, high: float, count: int) -> Iterator[tuple[float, float]]:
    ends = np.linspace(low, high, count + 1)
    yield from zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)


def horner(coefficients: tuple[float, ...], x):
    """A polynomial in whatever can be added and multiplied."""
    value = x * 0 + arb(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + arb(coefficient)
    return value


def tail(x):
    return (x / arb(2).sqrt()).erfc() / 2


def density(x):
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


# The formulas in real arithmetic.


def central(y):
    """-Φ⁻¹(½ + y), for y from -0.365 to 0."""
    square = y * y
    return -(y + y * (square * horner(P0, square) / horner(Q0, square))) * arb(ROOT)


def outer(w, p: tuple[float, ...], q: tuple[float, ...]):
    """-Φ⁻¹(exp(-w²/2)), for w from 2 on."""
    z = 1 / w
    return w - w.log() / w - z * horner(p, z) / horner(q, z)


def bound_on(function: Callable, low: float, high: float) -> arb:
    """The largest |function| from low to high, by its Taylor polynomial and Lagrange's rest."""
    middle = (arb(low) + arb(high)) / 2
    radius = upper(arb(high) - middle)
    ctx.cap = ORDER + 1
    here = function(arb_series([middle, 1]))
    around = function(arb_series([arb(middle, radius), 1]))
    assert len(list(around)) == ORDER + 1
    total = upper(around[ORDER]) * radius**ORDER
    for order in range(ORDER):
        total += upper(here[order]) * radius**order
    return upper(total)


def approximation_central(low: float, high: float) -> arb:
    """How far the formula is from -Φ⁻¹ for y in this interval."""
    defect = bound_on(lambda y: tail(central(y)) - y - arb(1) / 2, low, high)
    # So small a defect puts the truth within 2^-30 of the formula, as Q is monotone; so the density
    # between the two is that at the formula up to one part in 2^20.
    assert defect < arb(2) ** -40
    return upper(defect / density(central(ball(low, high))) * (1 + arb(2) ** -20))


def approximation_outer(low: float, high: float, p: tuple[float, ...], q: tuple[float, ...]) -> arb:
    """The same for w in this interval, by way of the relative error of the tail probability."""
    defect = bound_on(lambda w: tail(outer(w, p, q)) * (w * w / 2).exp() - 1, low, high)
    x = outer(ball(low, high), p, q)
    assert defect < arb(2) ** -40
    # Mills' ratio Q/φ is below 1/x.
    return upper(defect / x * (1 + arb(2) ** -20))


# The formulas as they are computed.


@dataclass(frozen=True)
class Computed:
    """What real arithmetic gives, over an interval, and how far the computed value can be off."""

    value: arb
    error: arb

    def rounded(self, units: int = 1) -> "Computed":
        """After a rounding by so many u; an operation that is fused rounds less often."""
        size = upper(self.value) + self.error
        return Computed(self.value, upper(self.error + units * U * size))

    def __add__(self, other: "Computed") -> "Computed":
        return Computed(self.value + other.value, self.error + other.error).rounded()

    def __sub__(self, other: "Computed") -> "Computed":
        return Computed(self.value - other.value, self.error + other.error).rounded()

    def __mul__(self, other: "Computed") -> "Computed":
        error = upper(self.value) * other.error + upper(other.value) * self.error
        return Computed(self.value * other.value, error + self.error * other.error).rounded()

    def __truediv__(self, other: "Computed") -> "Computed":
        quotient = self.value / other.value
        least = arb(other.value.abs_lower()) - other.error
        assert least > 0
        error = (self.error + upper(quotient) * other.error) / least
        return Computed(quotient, upper(error)).rounded()

    def log(self) -> "Computed":
        least = arb(self.value.lower()) - self.error
        return Computed(self.value.log(), upper(self.error / least)).rounded(4)

    def sqrt(self) -> "Computed":
        least = arb(self.value.lower()) - self.error
        error = self.error / (least.sqrt() + arb(self.value.lower()).sqrt())
        return Computed(self.value.sqrt(), upper(error)).rounded(4)


def exactly(value) -> Computed:
    return Computed(arb(value), arb(0))


def computed_horner(coefficients: tuple[float, ...], x: Computed) -> Computed:
    value = exactly(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + exactly(coefficient)
    return value


def shifted(function: Callable, start: Computed) -> tuple[Computed, arb]:
    """The start as if exact, and how much its error moves the function.

    An error that is followed through every operation counts as often as the value is used; the
    derivative knows that these add up or cancel.
    """
    around = arb(start.value.mid(), upper(arb(start.value.rad()) + start.error))
    ctx.cap = 2
    slope = upper(function(arb_series([around, 1]))[1])
    return exactly(around), upper(slope * start.error)


def computed_central(p: Computed) -> Computed:
    """The error of ``central``, but for the sign."""
    y, moved = shifted(central, p - exactly(0.5))
    square, moved_inner = shifted(lambda s: s * horner(P0, s) / horner(Q0, s), y * y)
    ratio = square * computed_horner(P0, square) / computed_horner(Q0, square)
    inner = Computed(ratio.value, ratio.error + moved_inner)
    done = (y + y * inner) * exactly(ROOT)
    return Computed(done.value, done.error + moved)


def computed_outer(y: Computed, p: tuple[float, ...], q: tuple[float, ...]) -> Computed:
    """The error of ``outer``."""
    # Doubling and changing the sign are exact.
    log = y.log()
    root = Computed(-2 * log.value, 2 * log.error).sqrt()
    w, moved = shifted(lambda v: outer(v, p, q), root)
    z, moved_ratio = shifted(lambda v: v * horner(p, v) / horner(q, v), exactly(1) / w)
    ratio = z * computed_horner(p, z) / computed_horner(q, z)
    ratio = Computed(ratio.value, ratio.error + moved_ratio)
    done = (w - w.log() / w) - ratio
    return Computed(done.value, done.error + moved)


# What the sampler relies on.


@dataclass(frozen=True)
class Piece:
    """A part of the domain, and what was proved there."""

    name: str
    most: arb  # of the tail probabilities
    value: arb
    approximation: arb
    rounding: arb

    @property
    def ndtri(self) -> arb:
        return self.approximation + self.rounding

    @property
    def product(self) -> arb:
        """How far ``ndtri``, times scale, is from any value of the interval, in units of scale."""
        # The density is smallest where x is largest; an interval does not reach 2^-10 further.
        least = density(arb(self.value.upper()) + arb(2) ** -10)
        # Half an interval, and the two roundings of its middle.
        width = (arb(2) ** -65 + 2.01 * U * self.most) / least
        return upper(width + self.ndtri + U * (upper(self.value) + arb(2) ** -10))


def examine() -> Iterator[Piece]:
    # An approximation has few wiggles, and its Taylor polynomials need few intervals; bounds on
    # rounding are intervals without polynomials, and need many.
    fine = 32
    for low, high in pieces(CENTRAL - 0.5 - OVERLAP, 0.0, 128):
        approximation = approximation_central(low, high)
        for left, right in pieces(low, high, fine):
            # The computed sign is that of ndtri.
            done = computed_central(exactly(ball(left, right) + arb(1) / 2))
            most = arb(right) + arb(1) / 2
            yield Piece("central", most, -done.value, approximation, done.error)
    last = float((-2 * (arb(2) ** -65).log()).sqrt().upper()) + OVERLAP
    for name, start, end, p, q in (
        ("P1/Q1", 2 - OVERLAP, 8 + OVERLAP, P1, Q1),
        ("P2/Q2", 8 - OVERLAP, last, P2, Q2),
    ):
        for low, high in pieces(start, end, 256):
            approximation = approximation_outer(low, high, p, q)
            for left, right in pieces(low, high, fine):
                w = ball(left, right)
                done = computed_outer(exactly((-w * w / 2).exp()), p, q)
                most = upper((-(arb(left) ** 2) / 2).exp())
                yield Piece(name, most, done.value, approximation, done.error)


def expansion_error() -> arb:
    """The largest relative error of Q in the second stage."""
    doubled, terms = rounded_gaussian._DOUBLED, rounded_gaussian._TERMS
    reach = arb(1) / (2 * rounded_gaussian._STEPS)
    ctx.cap = terms + 1
    worst = arb(0)
    # The last row that is used: tail probabilities are at least 2^-65.
    for row in range(round(9.3 * rounded_gaussian._STEPS)):
        x = arb(row) / rounded_gaussian._STEPS
        here = tail(arb_series([x, 1]))
        around = tail(arb_series([arb(x, reach), 1]))
        sizes = [upper(here[order]) * reach**order for order in range(terms)]
        truncation = upper(around[terms]) * reach**terms
        # Horner's rule in float64, with coefficients that are rounded.
        single = (2 * terms + 4) * U * sum(sizes[doubled:])
        # Each double-double step is off by less than 32·u² of what it adds up.
        double = doubled * 32 * U**2 * sum(sizes)
        total = (truncation + single + double) / tail(x + reach)
        worst = max(worst, upper(total), key=float)
    return worst


def seen(points: int = 100_000) -> tuple[float, float]:
    """The largest error of the installed ``ndtri`` at random tail probabilities, and where."""
    generator = np.random.default_rng(0)
    chosen = np.concatenate(
        [generator.uniform(2.0**-17, 0.5, points), 2.0 ** generator.uniform(-65, -1, points)]
    )
    ctx.prec = 128
    worst = (0.0, 0.0)
    for p, x in zip(chosen.tolist(), (-ndtri(chosen)).tolist(), strict=True):
        off = abs(float((tail(arb(x)) - arb(p)) / density(arb(x))))
        worst = max(worst, (off, p))
    return worst


def say(text: str) -> None:
    print(text)  # noqa: T201


def power(value) -> str:
    return f"2^{np.log2(float(value)):.2f}"


def main() -> None:
    ctx.prec = 256
    near = arb(NEAR) * arb(2) ** -64
    found = list(examine())
    for name in ("central", "P1/Q1", "P2/Q2"):
        own = [piece for piece in found if piece.name == name]
        approximation = max(float(piece.approximation) for piece in own)
        rounding = max(float(piece.rounding) for piece in own)
        total = max(float(piece.ndtri) for piece in own)
        say(f"{name:8} approximation {power(approximation)}  rounding {power(rounding)}")
        say(f"{'':8} |ndtri(p) + Q⁻¹(p)| <= {power(total)}")
    relative = max(float(piece.ndtri / max(arb(1), piece.value.lower())) for piece in found)
    say(f"for p >= 2^-65, |ndtri(p) + Q⁻¹(p)| <= {power(relative)}·max(1, x)")
    first = max(float(piece.product) for piece in found if piece.most >= near)
    say(f"first stage: off by at most {power(first)}·scale; the guard is {power(GUARD)}·scale")
    assert first <= GUARD / 4
    second = expansion_error()
    say(f"second stage: Q off by at most {power(second)} of itself; relied on: 2^-66")
    assert second < 2.0**-66
    worst, where = seen()
    say(f"seen in this SciPy: {power(worst)} at p = {where:.6g}")
    assert worst <= max(float(piece.ndtri) for piece in found)


if __name__ == "__main__":
    main()
