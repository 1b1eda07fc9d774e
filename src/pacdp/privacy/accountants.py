"""Accountants: they turn (releases, δ) into ε, and (ε, δ, K) into z.

``exact`` is the default: Gaussian releases compose exactly, so no other accountant without
sampling can certify less. The others are for comparison with the literature, and for releases
of Poisson-sampled records. Every accountant returns a valid upper bound on ε, and refuses releases
for which its formula does not hold.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pacdp.errors import InputError
from pacdp.privacy import poisson
from pacdp.privacy.gaussian import epsilon_for, mu_for
from pacdp.privacy.guarantee import Adjacency
from pacdp.privacy.releases import Release, total_mu
from pacdp.privacy.root_finding import smallest_noise
from pacdp.validation import FloatArray, IntArray, require_member


class Accountant(Protocol):
    """Computes how much releases cost, and how much noise a budget requires.

    ``samples`` says whether it can account for Poisson-sampled releases.
    """

    name: str
    samples: bool

    def epsilon(self, releases: Sequence[Release], delta: float) -> float:
        """Compute the ε of all releases together, which share one adjacency."""

    def z(self, epsilon: FloatArray, delta: FloatArray, count: IntArray) -> FloatArray:
        """Compute the least noise over sensitivity at which ``count`` releases cost at most ε."""


class Exact:
    """Gaussian composition: δ(ε; μ) with μ² = Σ 1/z² (see :mod:`pacdp.privacy.gaussian`).

    >>> release = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT, count=13)
    >>> round(Exact().epsilon([release], 1e-5), 6)
    1.386182
    """

    name = "exact"
    samples = False

    def epsilon(self, releases: Sequence[Release], delta: float) -> float:
        mu = total_mu(releases)
        return float(epsilon_for(mu, delta)) if mu > 0 else 0.0

    def z(self, epsilon: FloatArray, delta: FloatArray, count: IntArray) -> FloatArray:
        return np.sqrt(count) / mu_for(epsilon, delta)


class Renyi:
    """Rényi accounting with good orders and the improved conversion.

    The Gaussian costs ρ(α) = α·μ²/2 at every order α > 1, and

        ε = min_α ρ(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1)

    (Canonne, Kamath and Steinke 2020, Proposition 12).

    >>> release = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT, count=13)
    >>> round(Renyi().epsilon([release], 1e-5), 3)
    1.51
    """

    name = "rdp"
    samples = True
    # The best order is about 1 + √(2 ln(1/δ))/μ, which lies in this grid for μ from 1e-6 to 1e4;
    # steps of 2 % in α − 1 cost less than 1e-4 of ε.
    orders: FloatArray = 1 + np.geomspace(1e-4, 1e7, 1100)

    def conversion(self, delta: FloatArray) -> FloatArray:
        """Compute what the conversion at each order (last axis) adds to ρ(α)."""
        alpha, log_delta = self.orders, np.log(delta)[..., None]
        added: FloatArray = np.log1p(-1 / alpha) - (log_delta + np.log(alpha)) / (alpha - 1)
        return added

    def epsilon(self, releases: Sequence[Release], delta: float) -> float:
        if any(release.sampled for release in releases):
            return poisson.renyi_epsilon(releases, delta)
        cost = self.orders * (total_mu(releases) ** 2 / 2)
        return max(0.0, float(np.min(cost + self.conversion(np.asarray(delta)))))

    def z(self, epsilon: FloatArray, delta: FloatArray, count: IntArray) -> FloatArray:
        # At each order the largest μ²/2 within the budget is linear in ε; take the best order.
        half_mu_squared = np.max(
            (epsilon[..., None] - self.conversion(delta)) / self.orders, axis=-1
        )
        if np.any(half_mu_squared <= 0):
            where = np.unravel_index(int(np.argmin(half_mu_squared)), half_mu_squared.shape)
            floor = max(0.0, float(np.min(self.conversion(delta[where]))))
            raise InputError(
                f"epsilon = {epsilon[where]:g}: accountant {self.name} cannot certify less than "
                f"{floor:.4f} at δ = {delta[where]:g}; use a larger budget, or accountant exact"
            )
        return np.asarray(np.sqrt(count / (2 * half_mu_squared)))


class PaperRenyi(Renyi):
    """The paper's accountant: orders 2..64 and ε = min_α ρ(α) + ln(1/δ)/(α − 1).

    It cannot certify less than ln(1/δ)/63, which is 0.1827 at δ = 1e-5. A target below that
    floor is refused.

    >>> release = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT, count=13)
    >>> round(PaperRenyi().epsilon([release], 1e-5), 5)
    1.79561
    """

    name = "paper-rdp"
    samples = False
    orders = np.arange(2.0, 65.0)

    def conversion(self, delta: FloatArray) -> FloatArray:
        added: FloatArray = -np.log(delta)[..., None] / (self.orders - 1)
        return added


class Basic:
    """The paper's Corollary 1: the sum of the costs of single releases, for comparison.

    Each release costs √(2 ln(1.25/δ′))/z by the classic bound, with δ′ = δ/K so that the whole is
    (ε, δ)-private. The bound is proved only for ε below 1; more expensive releases are refused.

    >>> release = Release.clipped_sum(noise_multiplier=100, adjacency=Adjacency.ZERO_OUT, count=13)
    >>> round(Basic().epsilon([release], 1e-5), 3)
    0.695
    """

    name = "basic"
    samples = False

    def epsilon(self, releases: Sequence[Release], delta: float) -> float:
        count = sum(release.count for release in releases)
        if not count:
            return 0.0
        root = math.sqrt(2 * math.log(1.25 * count / delta))
        self._refuse_large(root / min(release.z for release in releases))
        return math.fsum(release.count * root / release.z for release in releases)

    def z(self, epsilon: FloatArray, delta: FloatArray, count: IntArray) -> FloatArray:
        self._refuse_large(float(np.max(epsilon / count)))
        return np.asarray(count * np.sqrt(2 * np.log(1.25 * count / delta)) / epsilon)

    def _refuse_large(self, largest: float) -> None:
        if not largest < 1:
            raise InputError(
                f"accountant basic: a release of ε = {largest:g}, but the classic bound "
                "√(2 ln(1.25/δ))/z holds below 1 only; use accountant exact"
            )


class PrivacyLossDistribution:
    """The numerical accountant of dp-accounting, as an upper bound; slow, but covers sampling.

    >>> release = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT, count=13)
    >>> round(PrivacyLossDistribution().epsilon([release], 1e-5), 4)
    1.3862
    """

    name = "pld"
    samples = True

    def epsilon(self, releases: Sequence[Release], delta: float) -> float:
        return poisson.pld_epsilon(releases, delta)

    def z(self, epsilon: FloatArray, delta: FloatArray, count: IntArray) -> FloatArray:
        # z is noise over sensitivity, so without sampling any adjacency gives the same.
        return search_noise(self, epsilon, delta, count, np.ones_like(epsilon), Adjacency.ZERO_OUT)


def search_noise(
    accountant: Accountant,
    epsilon: FloatArray,
    delta: FloatArray,
    count: IntArray,
    sampling_rate: FloatArray,
    adjacency: Adjacency,
) -> FloatArray:
    """Search the least z within ε, to 1e-6 relative, for an accountant without an inverse."""

    def search(epsilon: float, delta: float, count: int, sampling_rate: float) -> float:
        def cost(z: float) -> float:
            release = Release.clipped_sum(
                noise_multiplier=z * adjacency.sensitivity,
                adjacency=adjacency,
                count=count,
                sampling_rate=sampling_rate,
            )
            return accountant.epsilon([release], delta)

        # Sampling never costs more, so the noise that is needed without it is an upper bound.
        guess = 1.001 * math.sqrt(count) / float(mu_for(epsilon, delta))
        return smallest_noise(cost, epsilon, guess=guess)

    columns = (values.ravel().tolist() for values in (epsilon, delta, count, sampling_rate))
    return np.reshape([search(*row) for row in zip(*columns, strict=True)], epsilon.shape)


_ALL: tuple[Accountant, ...] = (
    *(Exact(), Renyi(), PaperRenyi(), PrivacyLossDistribution(), Basic()),
)
ACCOUNTANTS = {accountant.name: accountant for accountant in _ALL}


def choose_accountant(name: str | None, *, sampled: bool) -> Accountant:
    """Return an accountant by name; the default is ``exact``, or ``pld`` for sampled releases.

    >>> choose_accountant(None, sampled=True).name
    'pld'
    """
    if name is None:
        name = "pld" if sampled else "exact"
    accountant = ACCOUNTANTS[require_member("accountant", name, ACCOUNTANTS)]
    if sampled and not accountant.samples:
        able = " or ".join(other.name for other in _ALL if other.samples)
        raise InputError(f"accountant = {name!r}: does not cover Poisson sampling; use {able}")
    return accountant
