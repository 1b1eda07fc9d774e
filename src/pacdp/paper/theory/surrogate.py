"""The bias–variance trade-off of a clipping bound, with the dimension that the paper's rates omit.

    J(C; ε) = h(C) + κ·d·(z(ε)·C/B)²

h is the squared length of what clipping removes from the mean gradient. Its exact value,
‖E[g − clip(g, C)]‖², needs whole gradients and can increase with C where examples cancel. By the
triangle inequality it is at most (E(‖g‖ − C)₊)², which is the h used here: it needs only norms, is
convex and never increases. J is then strictly convex, has one minimiser, and the minimiser never
decreases as ε grows. This is what the paper requires of h.

The noise has d coordinates of variance (z·C/B)². κ weighs noise against bias.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import elementwise

from pacdp.errors import InputError
from pacdp.federation import LocalModel
from pacdp.federation.weights import client_weights
from pacdp.models import count_parameters
from pacdp.offline import ProxyTask
from pacdp.validation import FloatArray, require_count, require_nonnegative, require_positive


@dataclass(frozen=True, eq=False, kw_only=True)
class Surrogate:
    """J(C; ε) for gradients with given norms.

    >>> surrogate = Surrogate(norms=[0.5, 1.0, 2.0], dimension=10, divisor=50)
    >>> round(float(surrogate(1.0, noise_multiplier=5.0)), 4)
    0.2111
    >>> surrogate.minimiser([1.0, 5.0, 25.0]).round(2)
    array([1.93, 1.05, 0.33])
    """

    norms: ArrayLike
    """‖g_i‖ of each example."""
    dimension: int
    """d: number of coordinates that noise is added to."""
    divisor: float
    """B: divisor of a noised sum."""
    kappa: float = 1.0

    def __post_init__(self) -> None:
        norms = np.sort(require_nonnegative("norms", self.norms).ravel())
        if not norms[-1] > 0:
            raise InputError("norms: are all zero, must hold one above zero")
        object.__setattr__(self, "norms", norms)
        require_count("dimension", self.dimension)
        require_positive("divisor", self.divisor)
        require_positive("kappa", self.kappa)

    def __call__(self, bounds: ArrayLike, *, noise_multiplier: ArrayLike) -> FloatArray:
        """Return J, with bounds and noise multipliers broadcast against each other."""
        return np.asarray(self.bias(bounds) + self.noise(bounds, noise_multiplier=noise_multiplier))

    def bias(self, bounds: ArrayLike) -> FloatArray:
        """Return h(C) = (E(‖g‖ − C)₊)².

        >>> surrogate = Surrogate(norms=[1.0, 3.0], dimension=1, divisor=1)
        >>> surrogate.bias([1.0, 2.0, 3.0])
        array([1.  , 0.25, 0.  ])
        """
        return self._excess(require_nonnegative("bounds", bounds))[0] ** 2

    def noise(self, bounds: ArrayLike, *, noise_multiplier: ArrayLike) -> FloatArray:
        """Return κ·d·(z·C/B)².

        >>> surrogate = Surrogate(norms=[1.0], dimension=8, divisor=10)
        >>> float(surrogate.noise(0.5, noise_multiplier=10.0))
        2.0
        """
        scale = require_positive("noise_multiplier", noise_multiplier) / self.divisor
        return np.asarray(self.kappa * self.dimension * (scale * np.asarray(bounds, float)) ** 2)

    def minimiser(self, noise_multiplier: ArrayLike) -> FloatArray:
        """Return C* for each noise multiplier.

        The slope of J increases and has one sign change, possibly at a jump: h has a kink at each
        norm. The root is searched in ln C, so that small bounds are as accurate as large ones.
        """
        z = require_positive("noise_multiplier", noise_multiplier)
        weight = self.kappa * self.dimension * (z / self.divisor) ** 2

        def slope(log_bound: FloatArray, weight: FloatArray) -> FloatArray:
            bound = np.exp(log_bound)
            excess, tail = self._excess(bound)
            return np.asarray(weight * bound - excess * tail)

        norms = np.asarray(self.norms)
        # Below the smallest norm every gradient is clipped and the excess is at least E‖g‖ − C, so
        # the slope is negative up to this bound. Above all norms it is positive.
        share = float(np.mean(norms > 0))
        low = np.minimum(norms[norms > 0][0], norms.mean() * share / (weight + share)) / 2
        high = np.full_like(low, np.log(norms[-1]) + 1e-9)
        root = elementwise.find_root(slope, (np.log(low), high), args=(weight,))
        return np.asarray(np.exp(root.x))[()]

    def _excess(self, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return E(‖g‖ − C)₊ and P(‖g‖ > C)."""
        norms = np.asarray(self.norms)
        sums = np.append(np.cumsum(norms[::-1])[::-1], 0.0)
        first = np.searchsorted(norms, bounds, side="right")
        above = len(norms) - first
        excess = np.maximum(sums[first] - above * bounds, 0) / len(norms)
        return np.asarray(excess), np.asarray(above / len(norms))


def compute_clipping_bias(gradients: ArrayLike, bounds: ArrayLike) -> FloatArray:
    """Compute ‖mean of (g − clip(g, C))‖² of gradients (examples, d), the value that h bounds.

    >>> compute_clipping_bias([[3.0, 0.0], [-1.0, 0.0]], [1.0, 2.0, 3.0])
    array([1.  , 0.25, 0.  ])
    """
    table = np.asarray(gradients, float)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise InputError(f"gradients: have shape {table.shape}, must be finite (examples, d)")
    norms = np.maximum(np.linalg.norm(table, axis=1), 1e-300)
    removed = np.maximum(1 - require_positive("bounds", bounds)[..., None] / norms, 0)
    return np.asarray(((removed @ table / len(table)) ** 2).sum(-1))


def compute_proxy_norms(proxy_task: ProxyTask, *, seed: int = 0) -> FloatArray:
    """Compute the norms of the proxy's gradients at the initial weights; all of it is public.

    >>> from pacdp.paper.theory.surrogate_check import make_heart_proxy_task
    >>> proxy_task = make_heart_proxy_task(0.1)
    >>> len(compute_proxy_norms(proxy_task)) == len(proxy_task.proxy.data.train)
    True
    """
    data = proxy_task.proxy.data
    gradient = LocalModel(proxy_task.plan(1.0, 1.0, seed)).gradient
    norms = gradient.norms(*data.train.tensors(data.task))
    return np.asarray(norms.detach().double().numpy())


def predict_thresholds(
    proxy_task: ProxyTask, budgets: ArrayLike, *, kappa: float | None = None, seed: int = 0
) -> FloatArray:
    """Predict C* for each budget without any training.

    Clients differ in noise and size, so z/B is that of their weighted mean: the root of
    Σ p_i²·(z_i/B_i)². By default κ is one over the number of steps: over K steps a constant bias
    adds up to K times itself, but independent noise only to √K times.

    >>> from pacdp.paper.theory.surrogate_check import make_heart_proxy_task
    >>> low, high = predict_thresholds(make_heart_proxy_task(0.1), [0.05, 5.0])
    >>> bool(low < high)
    True
    """
    epsilons = np.atleast_1d(require_positive("budgets", budgets))
    plans = [proxy_task.plan(float(epsilon), 1.0, seed) for epsilon in epsilons.ravel()]
    noises = []
    for plan in plans:
        participants = plan.participants(0)
        weights = np.asarray(client_weights(plan, participants, round=0), float)
        clients = [plan.clients[client] for client in participants]
        relative = [(client.noise_multiplier or 0.0) / client.divisor for client in clients]
        noises.append(float(np.linalg.norm(weights * np.array(relative))))
    steps = plans[0].rounds * max(client.steps for client in plans[0].clients)
    surrogate = Surrogate(
        norms=compute_proxy_norms(proxy_task, seed=seed),
        dimension=count_parameters(LocalModel(plans[0]).model),
        divisor=1.0,
        kappa=1 / steps if kappa is None else kappa,
    )
    return np.asarray(surrogate.minimiser(np.array(noises))).reshape(epsilons.shape)
