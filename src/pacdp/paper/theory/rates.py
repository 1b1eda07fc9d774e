"""Theorems 2 to 4 with explicit constants, dimension and step size.

One round moves the model by −η·(∇f + b + noise). The noise of M clients' mean has the variance

    V = s²/(M·B) + d·(z·C/B)²/M,

where s² is the variance of one example's gradient and b the bias of clipping. For an L-smooth f and
η ≤ 1/L the descent lemma gives, without further approximation,

    E f(w⁺) ≤ f(w) − η/2·‖∇f(w)‖² + η/2·‖b‖² + L·η²·V/2,

and all bounds here are sums of this inequality. They contain V and not its root: an error that is
linear in z·C requires a step size tuned to the noise, and then has a factor 1/√T.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.privacy import mu_for
from pacdp.validation import FloatArray, count, member, not_negative, positive, positive_number

Theorem = Literal["non-convex", "convex", "strongly convex"]
THEOREMS: tuple[Theorem, ...] = ("non-convex", "convex", "strongly convex")
# Upper limit of the search for the best number of rounds.
MAX_ROUNDS = 2**40


@dataclass(frozen=True, kw_only=True)
class RateParameters:
    """The quantities that the theorems' bounds depend on."""

    smoothness: float
    """L."""
    strong_convexity: float = 0.0
    """μ of Theorem 4."""
    gap: float
    """f(w⁰) − f*."""
    distance: float = 1.0
    """‖w⁰ − w*‖, for convex f."""
    sampling_variance: float = 0.0
    """s²: variance of one example's gradient, summed over all coordinates."""
    bias: float = 0.0
    """‖b‖: largest distance by which clipping moves the mean gradient."""
    dimension: int
    """d."""
    clients: int
    """M, per round."""
    batch: float
    """B."""
    clipping_bound: float
    """C."""

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "distance", "batch", "clipping_bound"):
            positive_number(name, getattr(self, name))
        for name in ("strong_convexity", "sampling_variance", "bias"):
            not_negative(name, getattr(self, name))
        for name in ("dimension", "clients"):
            count(name, getattr(self, name))
        if self.strong_convexity > self.smoothness:
            raise InputError(
                f"strong_convexity = {self.strong_convexity:g}: must be at most the smoothness, "
                f"{self.smoothness:g}"
            )

    def variance(self, noise_multiplier: ArrayLike) -> FloatArray:
        """Return V, the variance of the mean over clients.

        >>> parameters = RateParameters(
        ...     smoothness=1, gap=1, dimension=100, clients=4, batch=50, clipping_bound=0.5
        ... )
        >>> round(float(parameters.variance(10.0)), 6)
        0.25
        """
        noise = not_negative("noise_multiplier", noise_multiplier) * self.clipping_bound
        single = self.sampling_variance / self.batch + self.dimension * (noise / self.batch) ** 2
        return np.asarray(single / self.clients)


def error_bound(
    theorem: Theorem,
    parameters: RateParameters,
    *,
    rounds: ArrayLike,
    step: ArrayLike,
    noise_multiplier: ArrayLike,
) -> FloatArray:
    """Return an upper bound of the error after T rounds with step size η ≤ 1/L (convex: 1/(2L)).

    - ``non-convex``, of the mean of E‖∇f(w_t)‖²: 2Δ/(ηT) + ‖b‖² + LηV
    - ``convex``, of E f(w̄) − f*: D²/(ηT) + ηV, without a clipping bias
    - ``strongly convex``, of E f(w_T) − f*: (1 − ημ)^T·Δ + (‖b‖² + LηV)/(2μ)

    >>> parameters = RateParameters(
    ...     smoothness=1, strong_convexity=0.5, gap=1, dimension=10, clients=4, batch=50,
    ...     clipping_bound=1,
    ... )
    >>> [round(float(error_bound(name, parameters, rounds=50, step=0.5, noise_multiplier=5)), 4)
    ...  for name in THEOREMS]
    [0.0925, 0.0525, 0.0125]
    """
    _check(theorem, parameters)
    total, eta = count("rounds", rounds), positive("step", step)
    limit = 1 / parameters.smoothness / (2 if theorem == "convex" else 1)
    if np.any(eta > limit * (1 + 1e-12)):
        raise InputError(f"step = {eta.max():g}: must be at most {limit:g} for {theorem} f")
    variance = parameters.variance(noise_multiplier)
    if theorem == "convex":
        if parameters.bias:
            # The bias adds its product with the distance to w*, for which there is no bound.
            raise InputError(f"bias = {parameters.bias:g}: must be 0 for convex f")
        return np.asarray(parameters.distance**2 / (eta * total) + eta * variance)
    floor = parameters.bias**2 + parameters.smoothness * eta * variance
    if theorem == "non-convex":
        return np.asarray(2 * parameters.gap / (eta * total) + floor)
    mu = parameters.strong_convexity
    return np.asarray((1 - eta * mu) ** total * parameters.gap + floor / (2 * mu))


def stated_rate(
    theorem: Theorem,
    parameters: RateParameters,
    *,
    rounds: ArrayLike,
    noise_multiplier: ArrayLike,
) -> FloatArray:
    """Return the rate as the paper states it, with all constants set to one.

    >>> parameters = RateParameters(
    ...     smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1
    ... )
    >>> round(float(stated_rate("non-convex", parameters, rounds=100, noise_multiplier=5)), 4)
    0.1
    """
    _check(theorem, parameters)
    total, clients = count("rounds", rounds), parameters.clients
    scale = not_negative("noise_multiplier", noise_multiplier) * parameters.clipping_bound
    noise = scale / parameters.batch / math.sqrt(clients)
    if theorem == "strongly convex":
        return np.asarray((1 / total + noise) / parameters.strong_convexity)
    samples = clients * total if theorem == "non-convex" else total
    return np.asarray(1 / np.sqrt(samples) + noise)


def best_rounds(
    theorem: Theorem, parameters: RateParameters, *, step: float, epsilon: float, delta: float
) -> int:
    """Return the T with the smallest bound at a fixed total (ε, δ), with one release per round.

    T releases within one budget need z = √T/μ(ε, δ) each, so V = s²/(MB) + v·T increases with the
    rounds. The bounds are convex in T, and their minima have closed forms:

    - ``non-convex``: √(2Δ/(L·v))/η
    - ``convex``: D/(η·√v)
    - ``strongly convex``: ln(2μΔ·r/(L·η·v))/r, with r = −ln(1 − ημ)

    >>> parameters = RateParameters(
    ...     smoothness=1, strong_convexity=0.5, gap=1, dimension=10, clients=4, batch=50,
    ...     clipping_bound=1,
    ... )
    >>> [
    ...     best_rounds("strongly convex", parameters, step=0.5, epsilon=epsilon, delta=1e-5)
    ...     for epsilon in (0.1, 1, 10)
    ... ]
    [1, 13, 27]
    """
    _check(theorem, parameters)
    eta, smoothness, gap = positive_number("step", step), parameters.smoothness, parameters.gap
    scale = parameters.clipping_bound / parameters.batch
    v = parameters.dimension * scale**2 / parameters.clients / float(mu_for(epsilon, delta)) ** 2
    if theorem == "strongly convex":
        mu = parameters.strong_convexity
        if eta * mu >= 1:
            # One step reaches the minimum, and further ones only add noise.
            return 1
        decay = -math.log1p(-eta * mu)
        optimum = math.log(2 * mu * gap * decay / (smoothness * eta * v)) / decay
    elif theorem == "convex":
        optimum = parameters.distance / (eta * math.sqrt(v))
    else:
        optimum = math.sqrt(2 * gap / (smoothness * v)) / eta
    below = min(max(math.floor(optimum), 1), MAX_ROUNDS)
    return min(
        (below, below + 1),
        key=lambda rounds: bound_at_budget(
            theorem, parameters, rounds, step=step, epsilon=epsilon, delta=delta
        ),
    )


def bound_at_budget(
    theorem: Theorem,
    parameters: RateParameters,
    rounds: int,
    *,
    step: float,
    epsilon: float,
    delta: float,
) -> float:
    """Return the bound after T rounds that share one total (ε, δ).

    >>> parameters = RateParameters(
    ...     smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1
    ... )
    >>> few, some, many = (
    ...     bound_at_budget("non-convex", parameters, rounds, step=0.5, epsilon=1, delta=1e-5)
    ...     for rounds in (1, 50, 5000)
    ... )
    >>> few > some < many
    True
    """
    z = math.sqrt(rounds) / float(mu_for(epsilon, delta))
    return float(error_bound(theorem, parameters, rounds=rounds, step=step, noise_multiplier=z))


def best_step(
    parameters: RateParameters, *, rounds: ArrayLike, noise_multiplier: ArrayLike
) -> FloatArray:
    """Return the η with the smallest ``non-convex`` bound: √(2Δ/(L·V·T)), at most 1/L.

    The bound is then 2·√(2ΔLV/T). Where noise dominates, this is linear in z·C·√d/(B·√M), as the
    paper says, but decreases with T. At a fixed total budget V grows with T, the two cancel, and T
    has no influence once it is large enough.

    >>> parameters = RateParameters(
    ...     smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1
    ... )
    >>> best_step(parameters, rounds=[1, 100], noise_multiplier=50.0).round(3)
    array([0.894, 0.089])
    """
    total = parameters.variance(noise_multiplier) * count("rounds", rounds)
    ratio = 2 * parameters.gap / (parameters.smoothness * np.maximum(total, 1e-300))
    return np.asarray(np.minimum(np.sqrt(ratio), 1 / parameters.smoothness))


def _check(theorem: Theorem, parameters: RateParameters) -> None:
    member("theorem", theorem, THEOREMS)
    if theorem == "strongly convex" and not parameters.strong_convexity > 0:
        raise InputError("strong_convexity = 0: must be > 0 for strongly convex f")
