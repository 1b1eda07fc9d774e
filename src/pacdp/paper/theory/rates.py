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
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.privacy import mu_for
from pacdp.validation import (
    FloatArray,
    require_count,
    require_member,
    require_nonnegative,
    require_positive,
    require_positive_number,
)

Theorem = Literal["non-convex", "convex", "strongly convex"]
THEOREMS: tuple[Theorem, ...] = get_args(Theorem)
# Upper limit of the search for the best number of rounds.
MAX_ROUNDS = 2**40


@dataclass(frozen=True, kw_only=True)
class RateParameters:
    """The quantities that the theorems' bounds depend on.

    >>> parameters = RateParameters(
    ...     smoothness=1, strong_convexity=0.5, gap=1, dimension=10, clients=4, batch=50,
    ...     clipping_bound=1,
    ... )
    >>> round(float(parameters.variance(10.0)), 6)
    0.1
    >>> at = {"rounds": 50, "step": 0.5, "noise_multiplier": 5}
    >>> [round(float(parameters.error_bound(theorem, **at)), 4) for theorem in THEOREMS]
    [0.0925, 0.0525, 0.0125]
    >>> at = {"rounds": 100, "noise_multiplier": 5}
    >>> [round(float(parameters.stated_rate(theorem, **at)), 4) for theorem in THEOREMS]
    [0.1, 0.15, 0.12]
    >>> at = {"step": 0.5, "delta": 1e-5}
    >>> [parameters.best_rounds("strongly convex", epsilon=e, **at) for e in (0.1, 1, 10)]
    [1, 13, 27]
    >>> parameters.best_step(rounds=[1, 100], noise_multiplier=50.0).round(3)
    array([0.894, 0.089])
    """

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
            require_positive_number(name, getattr(self, name))
        for name in ("strong_convexity", "sampling_variance", "bias"):
            require_nonnegative(name, getattr(self, name))
        for name in ("dimension", "clients"):
            require_count(name, getattr(self, name))
        if self.strong_convexity > self.smoothness:
            raise InputError(
                f"strong_convexity = {self.strong_convexity:g}: must be at most the smoothness, "
                f"{self.smoothness:g}"
            )

    def variance(self, noise_multiplier: ArrayLike) -> FloatArray:
        """Return V, the variance of the mean over clients."""
        noise = require_nonnegative("noise_multiplier", noise_multiplier) * self.clipping_bound
        single = self.sampling_variance / self.batch + self.dimension * (noise / self.batch) ** 2
        return np.asarray(single / self.clients)

    def error_bound(
        self, theorem: Theorem, *, rounds: ArrayLike, step: ArrayLike, noise_multiplier: ArrayLike
    ) -> FloatArray:
        """Return an upper bound of the error after T rounds of a step η ≤ 1/L (convex: 1/(2L)).

        - ``non-convex``, of the mean of E‖∇f(w_t)‖²: 2Δ/(ηT) + ‖b‖² + LηV
        - ``convex``, of E f(w̄) − f*: D²/(ηT) + ηV, without a clipping bias
        - ``strongly convex``, of E f(w_T) − f*: (1 − ημ)^T·Δ + (‖b‖² + LηV)/(2μ)
        """
        self._check(theorem)
        total, eta = require_count("rounds", rounds), require_positive("step", step)
        limit = 1 / self.smoothness / (2 if theorem == "convex" else 1)
        if np.any(eta > limit * (1 + 1e-12)):
            raise InputError(f"step = {eta.max():g}: must be at most {limit:g} for {theorem} f")
        variance = self.variance(noise_multiplier)
        if theorem == "convex":
            return np.asarray(self.distance**2 / (eta * total) + eta * variance)
        floor = self.bias**2 + self.smoothness * eta * variance
        if theorem == "non-convex":
            return np.asarray(2 * self.gap / (eta * total) + floor)
        mu = self.strong_convexity
        return np.asarray((1 - eta * mu) ** total * self.gap + floor / (2 * mu))

    def stated_rate(
        self, theorem: Theorem, *, rounds: ArrayLike, noise_multiplier: ArrayLike
    ) -> FloatArray:
        """Return the rate as the paper states it, with all constants set to one."""
        self._check(theorem)
        total = require_count("rounds", rounds)
        scale = require_nonnegative("noise_multiplier", noise_multiplier) * self.clipping_bound
        noise = scale / self.batch / math.sqrt(self.clients)
        if theorem == "strongly convex":
            return np.asarray((1 / total + noise) / self.strong_convexity)
        samples = self.clients * total if theorem == "non-convex" else total
        return np.asarray(1 / np.sqrt(samples) + noise)

    def bound_at_budget(
        self, theorem: Theorem, rounds: int, *, step: float, epsilon: float, delta: float
    ) -> float:
        """Return the bound after T rounds that share one total (ε, δ)."""
        z = math.sqrt(rounds) / float(mu_for(epsilon, delta))
        return float(self.error_bound(theorem, rounds=rounds, step=step, noise_multiplier=z))

    def best_rounds(self, theorem: Theorem, *, step: float, epsilon: float, delta: float) -> int:
        """Return the T with the smallest bound at a fixed total (ε, δ), with one release per round.

        T releases within one budget need z = √T/μ(ε, δ) each, so V = s²/(MB) + v·T increases with
        the rounds. The bounds are convex in T, and their minima have closed forms:

        - ``non-convex``: √(2Δ/(L·v))/η
        - ``convex``: D/(η·√v)
        - ``strongly convex``: ln(2μΔ·r/(L·η·v))/r, with r = −ln(1 − ημ)
        """
        self._check(theorem)
        eta = require_positive_number("step", step)
        per_round = self.dimension * (self.clipping_bound / self.batch) ** 2 / self.clients
        v = per_round / float(mu_for(epsilon, delta)) ** 2
        if theorem == "strongly convex":
            mu = self.strong_convexity
            if eta * mu >= 1:
                # One step reaches the minimum, and further ones only add noise.
                return 1
            decay = -math.log1p(-eta * mu)
            optimum = math.log(2 * mu * self.gap * decay / (self.smoothness * eta * v)) / decay
        elif theorem == "convex":
            optimum = self.distance / (eta * math.sqrt(v))
        else:
            optimum = math.sqrt(2 * self.gap / (self.smoothness * v)) / eta
        below = min(max(math.floor(optimum), 1), MAX_ROUNDS)
        at = {"step": step, "epsilon": epsilon, "delta": delta}
        return min((below, below + 1), key=lambda n: self.bound_at_budget(theorem, n, **at))

    def best_step(self, *, rounds: ArrayLike, noise_multiplier: ArrayLike) -> FloatArray:
        """Return the η with the smallest ``non-convex`` bound: √(2Δ/(L·V·T)), at most 1/L.

        The bound is then 2·√(2ΔLV/T). Where noise dominates, this is linear in z·C·√d/(B·√M), as
        the paper says, but decreases with T. At a fixed total budget V grows with T, the two
        cancel, and T has no influence once it is large enough.
        """
        total = self.variance(noise_multiplier) * require_count("rounds", rounds)
        ratio = 2 * self.gap / (self.smoothness * np.maximum(total, 1e-300))
        return np.asarray(np.minimum(np.sqrt(ratio), 1 / self.smoothness))

    def _check(self, theorem: Theorem) -> None:
        require_member("theorem", theorem, THEOREMS)
        if theorem == "strongly convex" and not self.strong_convexity > 0:
            raise InputError("strong_convexity = 0: must be > 0 for strongly convex f")
        if theorem == "convex" and self.bias:
            # The bias adds its product with the distance to w*, for which there is no bound.
            raise InputError(f"bias = {self.bias:g}: must be 0 for convex f")
