"""rPDP-FL with the published curve from budgets to sampling rates (Liu et al. 2024)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from pacdp.methods.client_plan import CalibrationRequest
from pacdp.methods.rpdp_fl import RpdpFl
from pacdp.privacy.accountants import Renyi
from pacdp.validation import FloatArray


class RpdpFlOriginal(RpdpFl):
    """rPDP-FL with published sampling rates, read off a curve that was fitted by least squares.

    From the publication (Liu et al. 2024, "Cross-silo Federated Learning with Record-level
    Personalized Differential Privacy") and its authors' code: noise and costs come from a Rényi
    accountant with whole orders from 2 to about 1000, under which one record moves a clipped sum by
    C; the cost ε(q) is simulated at rates of 0.001, 0.002, ..., 0.1 and 0.01, 0.02, ..., 1; the
    curve ε(q) = exp(a·q + b) + c is fitted to these points by least squares and inverted; budgets
    of at least ε(1) get the rate 1, and budgets of at most ε(1e-5) the rate 0, which leaves their
    records out.

    Not from there: the publication chooses the ε that the noise gives to a record that is never
    sampled (10 in its experiments), here it is the largest budget of the plan; the noise is solved
    exactly and not to 0.01 in ε; client sampling amplifies nothing, because the server sees who
    takes part (a client rate of 1 in the publication's formula); where costs are not convex in q,
    so that no exponential is the best, its limit a → 0 is used, which is a straight line; a client
    all of whose budgets would be left out samples the largest of them at 0.001, the smallest rate
    of the grid; and the divisor is the expected number of records, not rounded down.

    A fitted curve is no bound. The ledger is charged the true cost of each level over the whole
    run, which can be above or below its budget, and its entries carry the label.

    >>> RpdpFlOriginal().label
    'rpdp-fl-original'
    """

    name: ClassVar[str] = "rpdp-fl-original"
    label: ClassVar[str] = "rpdp-fl-original"

    def noise_multiplier(self, largest: float, request: CalibrationRequest) -> float:
        """Return σ/C according to the publication's accountant, whatever the adjacency."""
        return _fit_curve(largest, request).noise_multiplier

    def sampling_rate(self, epsilon: float, largest: float, request: CalibrationRequest) -> float:
        """Return the rate that the published curve gives; 0 leaves the records out."""
        if epsilon >= largest:
            return 1.0
        rate = _fit_curve(largest, request).rate(epsilon)
        # A client would have nothing to send if its largest budget were left out, too.
        return rate or (float(RATES[0]) if epsilon == request.epsilon else 0.0)


@dataclass(frozen=True)
class RateCurve:
    """The curve ε(q) = offset + height·(e^(a·q) − 1)/(e^a − 1), from rates to costs.

    This is exp(a·q + b) + c in a form that stays well-conditioned where it is almost straight.

    >>> curve = fit_rate_curve(10.0, releases=750, delta=1e-4)
    >>> round(curve.noise_multiplier, 2), round(curve.rate(0.1), 4)
    (13.31, 0.0214)
    """

    noise_multiplier: float
    curvature: float
    """a."""
    offset: float
    height: float
    floor: float
    """ε(1e-5): at budgets of at most this, records are left out."""

    def rate(self, epsilon: float) -> float:
        """Return the rate at which the curve reaches ε, from 0 to 1."""
        if epsilon <= max(self.floor, self.offset):
            return 0.0
        relative = (epsilon - self.offset) / self.height
        return min(1.0, float(np.log1p(relative * np.expm1(self.curvature)) / self.curvature))


@lru_cache(maxsize=256)
def fit_rate_curve(largest: float, *, releases: int, delta: float) -> RateCurve:
    """Simulate costs at many rates and fit the curve, at the noise that the largest ε needs.

    >>> fit_rate_curve(5.0, releases=750, delta=1e-5).rate(0.0)
    0.0
    """
    accountant = PublishedRenyi()
    shaped = np.array([largest]), np.array([delta]), np.array([releases])
    noise = float(accountant.z(*shaped)[0])
    costs = accountant.simulate(RATES, noise, releases, delta)

    # For each a, height and offset are a linear regression, so that only a has to be searched.
    def regress(curvature: float) -> tuple[float, float, float]:
        basis = np.expm1(curvature * RATES) / np.expm1(curvature)
        height, offset = np.polyfit(basis, costs, 1)
        return float(np.sum((offset + height * basis - costs) ** 2)), float(offset), float(height)

    searched = np.log([SMALLEST_CURVATURE, LARGEST_CURVATURE])
    found = minimize_scalar(lambda log: regress(np.exp(log))[0], bounds=searched, method="bounded")
    curvature = float(np.exp(found.x))
    _, offset, height = regress(curvature)
    return RateCurve(
        noise_multiplier=noise,
        curvature=curvature,
        offset=offset,
        height=height,
        floor=float(accountant.simulate(np.array([1e-5]), noise, releases, delta)[0]),
    )


# The rates at which the publication simulates the cost.
RATES: FloatArray = np.unique([*(np.arange(1, 101) / 100), *(np.arange(1, 100) / 1000)])
# The range in which a is searched.
SMALLEST_CURVATURE, LARGEST_CURVATURE = 1e-6, 30.0


class PublishedRenyi(Renyi):
    """The Rényi accountant of the publication's code: whole orders only, in steps of 7 %."""

    name = "rpdp-fl-original"
    orders: FloatArray = np.unique(np.floor(1.07 ** np.arange(103) + 1))

    def simulate(self, rates: FloatArray, noise: float, releases: int, delta: float) -> FloatArray:
        """Compute what releases with these sampling rates cost, at noise σ/C.

        By the sum of Mironov, Talwar and Zhang (2019) for whole orders α:
        exp((α − 1)·ρ) = Σ_k (α over k)·q^k·(1 − q)^(α − k)·exp(k(k − 1)/(2σ²)).
        """
        q, best = rates[:, None], np.full(len(rates), np.inf)
        for alpha, added in zip(self.orders, self.conversion(np.asarray(delta)), strict=True):
            k = np.arange(alpha + 1)
            ways = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
            terms = ways + xlogy(k, q) + xlog1py(alpha - k, -q) + k * (k - 1) / (2 * noise**2)
            best = np.minimum(best, releases * logsumexp(terms, axis=1) / (alpha - 1) + added)
        return best


def _fit_curve(largest: float, request: CalibrationRequest) -> RateCurve:
    steps = request.steps * request.participations
    return fit_rate_curve(largest, releases=steps, delta=request.delta)
