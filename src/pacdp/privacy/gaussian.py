"""The privacy curve of the Gaussian mechanism, and its two inverses.

Gaussian releases without subsampling compose exactly. Whatever their number and however their
noise was chosen from what came before, releases with noise z_k times their sensitivity are
together as private as one release with

    μ² = Σ_k 1/z_k²,        δ(ε; μ) = Φ(a) − e^ε·Φ(b),    a = μ/2 − ε/μ,   b = −μ/2 − ε/μ

(Balle and Wang 2018; Dong, Roth and Su 2019).

Numerics. With m(x) = Φ(x)/φ(x) the identity b² − a² = 2ε turns the difference into

    δ(ε; μ) = φ(a)·(m(a) − m(b)),

in which e^ε no longer appears, so nothing overflows at ε = 10⁶. For small μ the difference would
cancel, so it is computed as the integral of m′(x) = 1 + x·m(x) from b to a, by Gauss–Legendre
quadrature. The derivative ∂ln δ/∂μ = 1/(m(a) − m(b)) shows how rounding in ln δ moves μ: by parts
in 10¹³ over the whole allowed range, well within :data:`GUARD`, by which both inverses err on the
safe side.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, elementwise
from scipy.special import erfcx, log_ndtr, ndtri, ndtri_exp

from pacdp.errors import InputError
from pacdp.validation import (
    FloatArray,
    require_budget,
    require_nonnegative,
    require_positive,
    require_probability,
)

# ε is about μ²/2, and must stay a number.
LARGEST_MU = 1e100
# Both inverses move by this relative amount towards more privacy, which covers their rounding.
GUARD = 1e-12
# Near δ = 1 rounding is relative to 1 − δ.
_GUARD_NEAR_ONE = 1e-14
# Beyond this δ, rounding would dominate μ.
_LARGEST_DELTA = 1 - 1e-12

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
# Below this μ six nodes are exact to rounding; above it the plain difference loses < 3 digits.
_QUADRATURE_BELOW = 0.1
# ln δ is about −(ε/μ)²/2, whose square must not overflow. From here on δ is zero anyway.
_LARGEST_RATIO = 1e150


def delta_for(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """Compute the smallest δ at which Gaussian releases of total μ are (ε, δ)-private.

    >>> round(float(delta_for(1.0, 1.0)), 6)
    0.126937
    """
    return np.asarray(
        np.exp(_log_delta(require_nonnegative("epsilon", epsilon), require_positive("mu", mu)))
    )[()]


def epsilon_for(mu: ArrayLike, delta: ArrayLike) -> FloatArray:
    """Compute the smallest ε at which Gaussian releases of total μ are (ε, δ)-private.

    Zero where δ alone covers them. Never below the true value, and above it by at most 2e-12 of
    itself plus 4e-12 of δ.

    >>> round(float(epsilon_for(1.0, 1e-5)), 6)
    4.377178
    """
    all_mu, all_delta = np.broadcast_arrays(
        require_positive("mu", mu), require_probability("delta", delta)
    )
    if np.any(all_mu > LARGEST_MU):
        raise InputError(f"mu = {np.max(all_mu):g}: must be a number from 0 to {LARGEST_MU:g}")
    result = np.zeros_like(all_mu)
    # GUARD here and in the last line: a δ just above its target because of rounding still costs.
    costs = _log_delta(np.zeros_like(all_mu), all_mu) > np.log(all_delta) - GUARD
    if np.any(costs):
        some_mu, some_delta = all_mu[costs], all_delta[costs]
        lower = -1e-9 * some_delta
        # δ(ε) ≤ Φ(a), so ε is at most where a = Φ⁻¹(δ).
        upper = np.maximum(
            some_mu * (some_mu / 2 - ndtri(some_delta)) * (1 + 1e-9), 1e-9 * some_delta
        )
        root = np.zeros_like(some_mu)
        # Elsewhere δ alone covers the cost up to rounding, and ε is what the guard below adds.
        inside = _log_delta(lower, some_mu) > np.log(some_delta)
        if np.any(inside):
            root[inside] = _root(
                lambda epsilon, mu, log_delta: _log_delta(epsilon, mu) - log_delta,
                lower[inside],
                upper[inside],
                (some_mu[inside], np.log(some_delta[inside])),
            )
        guard = GUARD + _GUARD_NEAR_ONE / (1 - some_delta)
        result[costs] = np.maximum(root, 0) * (1 + guard) + 4 * guard * some_delta
    return np.asarray(result)[()]


def mu_for(epsilon: ArrayLike, delta: ArrayLike) -> FloatArray:
    """Compute the largest total μ that (ε, δ) covers: the inverse of :func:`epsilon_for`.

    Never above the true value, and below it by at most a few parts in 10¹².

    >>> round(1 / float(mu_for(0.1, 1e-5)), 5)
    30.74957
    """
    epsilon, delta = np.broadcast_arrays(
        require_budget("epsilon", epsilon), require_probability("delta", delta)
    )
    if np.any(delta > _LARGEST_DELTA):
        raise InputError(f"delta = 1 - {1 - np.max(delta):g}: must be at most 1 - 1e-12")
    log_delta = np.log(delta)
    tail = -ndtri(delta)
    # δ(ε; μ) ≤ Φ(a) gives the lower end. The upper one is the test "reject beyond s" with
    # e^ε·Φ(−s) ≤ (1 − δ)/2, whose power is Φ(μ − s).
    root = np.hypot(tail, np.sqrt(2 * epsilon))
    # Each form divides by zero or cancels only where the other one is used.
    with np.errstate(divide="ignore"):
        lower = np.where(tail > 0, 2 * epsilon / (tail + root), root - tail)
    upper = np.sqrt(2 * (epsilon - np.log1p(-delta))) - ndtri_exp(np.log1p(-delta) - np.log(2))
    # The unknown is a logarithm, so that its absolute error is μ's relative one.
    log_mu = _root(
        lambda log_mu, epsilon, log_delta: _log_delta(epsilon, np.exp(log_mu)) - log_delta,
        np.log(lower) - 1e-9,
        np.log(upper) + 1e-9,
        (epsilon, log_delta),
    )
    guard = GUARD + _GUARD_NEAR_ONE / (1 - delta)
    return np.asarray(np.exp(log_mu) * (1 - guard))[()]


def _root(
    function: Callable[..., FloatArray],
    lower: FloatArray,
    upper: FloatArray,
    parameters: tuple[FloatArray, ...],
) -> FloatArray:
    """Find the root of each element's function in its bracket, up to rounding."""
    if lower.size == 1:
        # Most calls are for one number, for which the vectorised search takes four times as long.
        values = tuple(value.reshape(1) for value in parameters)
        root = brentq(
            lambda x: function(np.array([x]), *values).item(),
            *(lower.item(), upper.item()),
            xtol=np.finfo(float).tiny,
            rtol=4 * np.finfo(float).eps,
            maxiter=10_000,
        )
        return np.full(lower.shape, root)
    result = elementwise.find_root(function, (lower, upper), args=parameters)
    if not np.all(result.success):
        raise ArithmeticError("the Gaussian privacy curve could not be inverted")
    return np.asarray(result.x)


def _log_delta(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """Compute ln δ(ε; μ) where δ is representable (ln δ > −750); very negative below."""
    # Overflow and ln 0 occur only for an ε or μ so extreme that δ is exactly 0 or 1.
    with np.errstate(over="ignore", divide="ignore"):
        return _log_delta_unguarded(epsilon, mu)


def _log_delta_unguarded(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    ratio = np.minimum(epsilon / mu, _LARGEST_RATIO)
    a, b = mu / 2 - ratio, -mu / 2 - ratio
    result = np.empty_like(a)
    small = mu < _QUADRATURE_BELOW
    if np.any(small):
        x = _NODES * (mu[small, None] / 2) - ratio[small, None]
        slope = np.maximum(1 + x * np.sqrt(np.pi / 2) * erfcx(-x / np.sqrt(2)), 1e-300)
        integral = (slope @ _WEIGHTS) * (mu[small] / 2)
        result[small] = np.log(integral) - a[small] ** 2 / 2 - _LOG_SQRT_2PI
    large = ~small
    if np.any(large):
        log_mills_a, log_mills_b = _log_mills(a[large]), _log_mills(b[large])
        result[large] = log_ndtr(a[large]) + np.log(-np.expm1(log_mills_b - log_mills_a))
    return result


def _log_mills(x: FloatArray) -> FloatArray:
    """Compute ln m(x) = ln Φ(x)/φ(x), by whichever form neither overflows nor cancels."""
    tail = np.log(np.sqrt(np.pi / 2) * erfcx(-np.minimum(x, 0) / np.sqrt(2)))
    above = np.maximum(x, 0)
    return np.asarray(np.where(x < 0, tail, log_ndtr(above) + above**2 / 2 + _LOG_SQRT_2PI))
