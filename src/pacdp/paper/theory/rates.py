"""Theorems 2 to 4 with their constants, the dimension and the step size written out.

One round moves the model by −η·(∇f + b + noise). The noise of M clients' mean has the variance

    V = s²/(M·B) + d·(z·C/B)²/M,

s² being that of one example's gradient and b the bias of clipping. For an L-smooth f and η ≤ 1/L
the descent lemma gives, with nothing dropped,

    E f(w⁺) ≤ f(w) − η/2·‖∇f(w)‖² + η/2·‖b‖² + L·η²·V/2,

and all that follows is this line, added up. V enters as itself and not as its root: an error that
is linear in z·C comes only from a step size that was tuned to the noise, and then it has a 1/√T.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.privacy import mu_for
from pacdp.validation import FloatArray, count, member, not_negative, positive, positive_number

Theorem = Literal["non-convex", "convex", "strongly convex"]
THEOREMS: tuple[Theorem, ...] = ("non-convex", "convex", "strongly convex")
# Rounds are searched up to here.
MOST_ROUNDS = 2**40


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the theorems know of a training."""

    smoothness: float
    """L."""
    strong_convexity: float = 0.0
    """μ of Theorem 4."""
    gap: float
    """f(w⁰) − f*."""
    distance: float = 1.0
    """‖w⁰ − w*‖, for convex f."""
    sampling_variance: float = 0.0
    """s²: the variance of one example's gradient, over all coordinates."""
    bias: float = 0.0
    """‖b‖: how far clipping moves the mean gradient at most."""
    dimension: int
    """d."""
    clients: int
    """M, in a round."""
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
        """V, of the mean over clients.

        >>> task = Task(
        ...     smoothness=1, gap=1, dimension=100, clients=4, batch=50, clipping_bound=0.5
        ... )
        >>> round(float(task.variance(10.0)), 6)
        0.25
        """
        noise = not_negative("noise_multiplier", noise_multiplier) * self.clipping_bound
        own = self.sampling_variance / self.batch + self.dimension * (noise / self.batch) ** 2
        return np.asarray(own / self.clients)


def bound(
    theorem: Theorem,
    task: Task,
    *,
    rounds: ArrayLike,
    step: ArrayLike,
    noise_multiplier: ArrayLike,
) -> FloatArray:
    """An upper bound of the error after T rounds of a step size η ≤ 1/L (convex: 1/(2L)).

    - ``non-convex``, of the mean of E‖∇f(w_t)‖²: 2Δ/(ηT) + ‖b‖² + LηV
    - ``convex``, of E f(w̄) − f*: D²/(ηT) + ηV, without a bias of clipping
    - ``strongly convex``, of E f(w_T) − f*: (1 − ημ)^T·Δ + (‖b‖² + LηV)/(2μ)

    >>> task = Task(
    ...     smoothness=1, strong_convexity=0.5, gap=1, dimension=10, clients=4, batch=50,
    ...     clipping_bound=1,
    ... )
    >>> [round(float(bound(name, task, rounds=50, step=0.5, noise_multiplier=5)), 4)
    ...  for name in THEOREMS]
    [0.0925, 0.0525, 0.0125]
    """
    member("theorem", theorem, THEOREMS)
    total, size = count("rounds", rounds), positive("step", step)
    limit = 1 / task.smoothness / (2 if theorem == "convex" else 1)
    if np.any(size > limit * (1 + 1e-12)):
        raise InputError(f"step = {size.max():g}: must be at most {limit:g} for {theorem} f")
    noise = task.variance(noise_multiplier)
    if theorem == "non-convex":
        floor = task.bias**2 + task.smoothness * size * noise
        return np.asarray(2 * task.gap / (size * total) + floor)
    if theorem == "convex":
        _refuse_bias(task)
        return np.asarray(task.distance**2 / (size * total) + size * noise)
    mu = _strongly_convex(task)
    floor = (task.bias**2 + task.smoothness * size * noise) / (2 * mu)
    return np.asarray((1 - size * mu) ** total * task.gap + floor)


def stated(
    theorem: Theorem,
    task: Task,
    *,
    rounds: ArrayLike,
    noise_multiplier: ArrayLike,
) -> FloatArray:
    """The rate as the paper states it, with every constant one.

    >>> task = Task(smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1)
    >>> round(float(stated("non-convex", task, rounds=100, noise_multiplier=5)), 4)
    0.1
    """
    member("theorem", theorem, THEOREMS)
    total = count("rounds", rounds)
    root = not_negative("noise_multiplier", noise_multiplier) * task.clipping_bound / task.batch
    noise = root / math.sqrt(task.clients)
    if theorem == "non-convex":
        return np.asarray(1 / np.sqrt(task.clients * total) + noise)
    if theorem == "convex":
        return np.asarray(1 / np.sqrt(total) + noise)
    return np.asarray((1 / total + noise) / _strongly_convex(task))


def best_rounds(theorem: Theorem, task: Task, *, step: float, epsilon: float, delta: float) -> int:
    """The T with the least bound at a fixed total (ε, δ), one release a round.

    T releases within one budget need z = √T/μ(ε, δ) each, so V = s²/(MB) + v·T, and more rounds
    are more noise. The bounds are convex in T, and their minima have closed forms:

    - ``non-convex``: √(2Δ/(L·v))/η
    - ``convex``: D/(η·√v)
    - ``strongly convex``: ln(2μΔ·r/(L·η·v))/r, with r = −ln(1 − ημ)

    >>> task = Task(
    ...     smoothness=1, strong_convexity=0.5, gap=1, dimension=10, clients=4, batch=50,
    ...     clipping_bound=1,
    ... )
    >>> [
    ...     best_rounds("strongly convex", task, step=0.5, epsilon=epsilon, delta=1e-5)
    ...     for epsilon in (0.1, 1, 10)
    ... ]
    [1, 13, 27]
    """
    size = positive_number("step", step)
    per_round = task.dimension * (task.clipping_bound / task.batch) ** 2 / task.clients
    v = per_round / float(mu_for(epsilon, delta)) ** 2
    if theorem == "strongly convex":
        mu = _strongly_convex(task)
        if size * mu >= 1:
            # One step reaches the minimum, and each more only adds noise.
            return 1
        decay = -math.log1p(-size * mu)
        free = math.log(2 * mu * task.gap * decay / (task.smoothness * size * v)) / decay
    elif theorem == "convex":
        free = task.distance / (size * math.sqrt(v))
    else:
        free = math.sqrt(2 * task.gap / (task.smoothness * v)) / size
    low = min(max(math.floor(free), 1), MOST_ROUNDS)
    return min(
        (low, low + 1), key=at_budget(theorem, task, step=step, epsilon=epsilon, delta=delta)
    )


def at_budget(
    theorem: Theorem, task: Task, *, step: float, epsilon: float, delta: float
) -> Callable[[int], float]:
    """The bound as a function of T, all T rounds within one (ε, δ).

    >>> task = Task(smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1)
    >>> after = at_budget("non-convex", task, step=0.5, epsilon=1, delta=1e-5)
    >>> after(1) > after(50) < after(5000)
    True
    """
    mu = float(mu_for(epsilon, delta))
    return lambda rounds: float(
        bound(theorem, task, rounds=rounds, step=step, noise_multiplier=math.sqrt(rounds) / mu)
    )


def tuned_step(task: Task, *, rounds: ArrayLike, noise_multiplier: ArrayLike) -> FloatArray:
    """η with the least ``non-convex`` bound: √(2Δ/(L·V·T)), at most 1/L.

    The bound is then 2·√(2ΔLV/T): linear in z·C·√d/(B·√M) where noise dominates, as the paper
    says, but falling with T. At a fixed total budget V grows with T, and the two cancel: T no
    longer matters, once it is large enough.

    >>> task = Task(smoothness=1, gap=1, dimension=10, clients=4, batch=50, clipping_bound=1)
    >>> tuned_step(task, rounds=[1, 100], noise_multiplier=50.0).round(3)
    array([0.894, 0.089])
    """
    noise = task.variance(noise_multiplier) * count("rounds", rounds)
    wanted = np.sqrt(2 * task.gap / (task.smoothness * np.maximum(noise, 1e-300)))
    return np.asarray(np.minimum(wanted, 1 / task.smoothness))


def _strongly_convex(task: Task) -> float:
    if not task.strong_convexity > 0:
        raise InputError("strong_convexity = 0: must be > 0 for strongly convex f")
    return task.strong_convexity


def _refuse_bias(task: Task) -> None:
    if task.bias:
        # The bias adds its product with the distance to w*, which nothing here bounds.
        raise InputError(f"bias = {task.bias:g}: must be 0 for convex f")
