"""Three objectives, one for each theorem, whose optimum and errors are known exactly.

Each gives the mean of clipped per-example gradients for many models at once, without ever holding
all the gradients: models are (cells, repeats, d), examples (repeats, examples, ...), and everything
between them is a product of matrices. Examples are fresh in every round, and all clients draw from
one distribution: there is neither overfitting nor skew, only what the theorems speak of.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from pacdp.validation import FloatArray

Draw = tuple[FloatArray, ...]


class Problem(Protocol):
    """An objective f, its examples and its errors."""

    @property
    def start(self) -> FloatArray:
        """w⁰."""

    @property
    def smoothness(self) -> float:
        """L, or an upper bound."""

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Examples (repeats, examples, ...)."""

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Σ shares·clip(g, C) over the examples; bounds and shares are (cells, 1 or examples)."""

    def error(self, models: FloatArray) -> FloatArray:
        """f(w) − f*."""

    def squared_gradient(self, models: FloatArray) -> FloatArray:
        """‖∇f(w)‖²."""


def _additive(
    gradient: FloatArray, errors: FloatArray, bounds: FloatArray, shares: FloatArray
) -> FloatArray:
    """The clipped mean where each example's gradient is ∇f(w) plus its own error."""
    cross = np.matmul(gradient.transpose(1, 0, 2), errors.transpose(0, 2, 1)).transpose(1, 0, 2)
    squares = (gradient**2).sum(-1)[..., None] + 2 * cross + (errors**2).sum(-1)
    norms = np.sqrt(np.maximum(squares, 1e-300))
    factors = np.minimum(1, bounds[:, None, :] / norms) * shares[:, None, :]
    mixed = np.matmul(factors.transpose(1, 0, 2), errors).transpose(1, 0, 2)
    return np.asarray(factors.sum(-1)[..., None] * gradient + mixed)


def _signs(
    random: np.random.Generator, repeats: int, examples: int, dimension: int, spread: float
) -> FloatArray:
    # ±spread in each coordinate: the variance of a Gaussian, and a norm that never surprises.
    drawn = random.integers(0, 2, size=(repeats, examples, dimension))
    return np.asarray(spread * (2.0 * drawn - 1), np.float64)


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """Strongly convex: f(w) = ½·Σ λ_j·w_j², the λ_j evenly spaced in their logarithm from μ to L.

    >>> problem = Quadratic(dimension=3, strong_convexity=0.25)
    >>> problem.curvatures
    array([0.25, 0.5 , 1.  ])
    >>> float(problem.error(problem.start))
    0.875
    """

    dimension: int = 16
    strong_convexity: float = 0.2
    smoothness: float = 1.0
    spread: float = 0.5
    """Standard deviation of an example's gradient in each coordinate."""

    @property
    def curvatures(self) -> FloatArray:
        """λ."""
        return np.geomspace(self.strong_convexity, self.smoothness, self.dimension)

    @property
    def start(self) -> FloatArray:
        """w⁰."""
        return np.ones(self.dimension)

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Errors of the examples' gradients."""
        return (_signs(random, repeats, examples, self.dimension, self.spread),)

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Σ shares·clip(g, C)."""
        return _additive(self.curvatures * models, draw[0], bounds, shares)

    def error(self, models: FloatArray) -> FloatArray:
        """f(w) − f*."""
        return np.asarray((self.curvatures * models**2).sum(-1) / 2)

    def squared_gradient(self, models: FloatArray) -> FloatArray:
        """‖∇f(w)‖²."""
        return np.asarray(((self.curvatures * models) ** 2).sum(-1))


@dataclass(frozen=True, kw_only=True)
class Wells:
    """Smooth and not convex: f(w) = Σ w_j²/(1 + w_j²), which bends down beyond |w_j| = 1/√3.

    >>> problem = Wells(dimension=2)
    >>> float(problem.error(problem.start)), problem.smoothness
    (1.0, 2.0)
    """

    dimension: int = 16
    spread: float = 0.5
    smoothness: float = 2.0

    @property
    def start(self) -> FloatArray:
        """w⁰: where f bends down."""
        return np.ones(self.dimension)

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Errors of the examples' gradients."""
        return (_signs(random, repeats, examples, self.dimension, self.spread),)

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Σ shares·clip(g, C)."""
        return _additive(2 * models / (1 + models**2) ** 2, draw[0], bounds, shares)

    def error(self, models: FloatArray) -> FloatArray:
        """f(w) − f*."""
        return np.asarray((models**2 / (1 + models**2)).sum(-1))

    def squared_gradient(self, models: FloatArray) -> FloatArray:
        """‖∇f(w)‖²."""
        return np.asarray(((2 * models / (1 + models**2) ** 2) ** 2).sum(-1))


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Convex: logistic regression without a penalty, on features x_j with variances s_j².

    Labels follow the model itself at w*, so f(w) − f* is the mean divergence between the two
    models' answers, and zero at w*. With ``decay`` > 0 the s_j fall as powers of j, and f is nearly
    flat in many directions.

    >>> problem = Logistic(dimension=3)
    >>> float(problem.error(problem.optimum)) < 1e-12 < float(problem.error(problem.start))
    True
    """

    dimension: int = 16
    decay: float = 0.0
    judged_on: int = 1024
    """Features on which f is taken: the same ones every time."""

    @property
    def scales(self) -> FloatArray:
        """s."""
        return np.asarray(np.arange(1.0, self.dimension + 1) ** -self.decay, np.float64)

    @property
    def optimum(self) -> FloatArray:
        """w*, equal in all coordinates, with answers that are as sure in any dimension."""
        return np.full(self.dimension, 2 / np.linalg.norm(self.scales))

    @property
    def start(self) -> FloatArray:
        """w⁰."""
        return np.zeros(self.dimension)

    @property
    def smoothness(self) -> float:
        """At most a quarter of the largest variance, with room for the sample f is taken on."""
        return 0.3

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Features and labels."""
        features = random.normal(size=(repeats, examples, self.dimension)) * self.scales
        labels = (random.random((repeats, examples)) < expit(features @ self.optimum)).astype(float)
        return features, labels

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Σ shares·clip(g, C)."""
        features, labels = draw
        answers = np.matmul(models.transpose(1, 0, 2), features.transpose(0, 2, 1))
        residuals = expit(answers.transpose(1, 0, 2)) - labels
        norms = np.abs(residuals) * np.linalg.norm(features, axis=-1)
        factors = np.minimum(1, bounds[:, None, :] / np.maximum(norms, 1e-300))
        weighed = factors * residuals * shares[:, None, :]
        return np.asarray(np.matmul(weighed.transpose(1, 0, 2), features).transpose(1, 0, 2))

    def error(self, models: FloatArray) -> FloatArray:
        """f(w) − f*."""
        features = self._judged()
        truth = features @ self.optimum
        answers = models @ features.T
        divergence = np.logaddexp(0, answers) - np.logaddexp(0, truth)
        return np.asarray((divergence - expit(truth) * (answers - truth)).mean(-1))

    def squared_gradient(self, models: FloatArray) -> FloatArray:
        """‖∇f(w)‖²."""
        features = self._judged()
        apart = expit(models @ features.T) - expit(features @ self.optimum)
        return np.asarray(((apart @ features / len(features)) ** 2).sum(-1))

    def _judged(self) -> FloatArray:
        random = np.random.default_rng(0)
        return random.normal(size=(self.judged_on, self.dimension)) * self.scales
