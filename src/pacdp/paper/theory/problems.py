"""Three objectives, one for each theorem, whose optimum and errors are known exactly.

Each objective computes the mean of clipped per-example gradients for many models at once without
storing the gradients: models are (cells, repeats, d), examples (repeats, examples, ...), and both
are combined by matrix products. All clients draw fresh examples from one distribution in every
round, so there is neither overfitting nor skew, which the theorems do not cover.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from pacdp.validation import FloatArray

Draw = tuple[FloatArray, ...]


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """An objective f, by default with per-example gradients that are ∇f(w) plus a random error."""

    dimension: int = 16
    spread: float = 0.5
    """Standard deviation of an example's gradient in each coordinate."""
    smoothness: float = 1.0
    """L, or an upper bound of it."""

    @property
    def start(self) -> FloatArray:
        """Return w⁰."""
        return np.ones(self.dimension)

    @abstractmethod
    def error(self, models: FloatArray) -> FloatArray:
        """Return f(w) − f*."""

    @abstractmethod
    def gradient(self, models: FloatArray) -> FloatArray:
        """Return ∇f(w)."""

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Draw examples (repeats, examples, ...)."""
        # ±spread in each coordinate: the variance of a Gaussian, but with a constant norm.
        signs = 2.0 * random.integers(0, 2, size=(repeats, examples, self.dimension)) - 1
        return (np.asarray(self.spread * signs, np.float64),)

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Return Σ shares·clip(g, C); bounds and shares are (cells, 1 or examples)."""
        gradient, (errors,) = self.gradient(models), draw
        cross = np.matmul(gradient.transpose(1, 0, 2), errors.transpose(0, 2, 1)).transpose(1, 0, 2)
        squares = (gradient**2).sum(-1)[..., None] + 2 * cross + (errors**2).sum(-1)
        norms = np.sqrt(np.maximum(squares, 1e-300))
        factors = np.minimum(1, bounds[:, None, :] / norms) * shares[:, None, :]
        mixed = np.matmul(factors.transpose(1, 0, 2), errors).transpose(1, 0, 2)
        return np.asarray(factors.sum(-1)[..., None] * gradient + mixed)


@dataclass(frozen=True, kw_only=True)
class Quadratic(Problem):
    """Strongly convex: f(w) = ½·Σ λ_j·w_j², with λ_j from μ to L evenly spaced in their logarithm.

    >>> problem = Quadratic(dimension=3, strong_convexity=0.25)
    >>> problem.curvatures
    array([0.25, 0.5 , 1.  ])
    >>> float(problem.error(problem.start))
    0.875
    """

    strong_convexity: float = 0.2

    @property
    def curvatures(self) -> FloatArray:
        """Return λ."""
        return np.geomspace(self.strong_convexity, self.smoothness, self.dimension)

    def gradient(self, models: FloatArray) -> FloatArray:
        """Return ∇f(w)."""
        return self.curvatures * models

    def error(self, models: FloatArray) -> FloatArray:
        """Return f(w) − f*."""
        return np.asarray((self.curvatures * models**2).sum(-1) / 2)


@dataclass(frozen=True, kw_only=True)
class Wells(Problem):
    """Smooth and non-convex: f(w) = Σ w_j²/(1 + w_j²), which is concave beyond |w_j| = 1/√3.

    >>> problem = Wells(dimension=2)
    >>> float(problem.error(problem.start)), problem.smoothness
    (1.0, 2.0)
    """

    smoothness: float = 2.0

    def gradient(self, models: FloatArray) -> FloatArray:
        """Return ∇f(w)."""
        return 2 * models / (1 + models**2) ** 2

    def error(self, models: FloatArray) -> FloatArray:
        """Return f(w) − f*."""
        return np.asarray((models**2 / (1 + models**2)).sum(-1))


@dataclass(frozen=True, kw_only=True)
class Logistic(Problem):
    """Convex: logistic regression without a penalty, on features x_j with variances s_j².

    Labels follow the model at w*, so f(w) − f* is the mean divergence between the predictions of
    both models, and zero at w*. With ``decay`` > 0 the s_j fall as powers of j, and f is nearly
    flat in many directions.

    >>> problem = Logistic(dimension=3)
    >>> float(problem.error(problem.optimum)) < 1e-12 < float(problem.error(problem.start))
    True
    """

    decay: float = 0.0
    test_examples: int = 1024
    """Number of fixed examples on which f is evaluated."""
    # At most a quarter of the largest variance, with a margin for the sampled examples.
    smoothness: float = 0.3

    @property
    def scales(self) -> FloatArray:
        """Return s."""
        return np.asarray(np.arange(1.0, self.dimension + 1) ** -self.decay, np.float64)

    @property
    def optimum(self) -> FloatArray:
        """Return w*, scaled such that predictions are equally confident in any dimension."""
        return np.full(self.dimension, 2 / np.linalg.norm(self.scales))

    @property
    def start(self) -> FloatArray:
        """Return w⁰."""
        return np.zeros(self.dimension)

    def draw(self, random: np.random.Generator, repeats: int, examples: int) -> Draw:
        """Draw features and labels."""
        features = random.normal(size=(repeats, examples, self.dimension)) * self.scales
        labels = (random.random((repeats, examples)) < expit(features @ self.optimum)).astype(float)
        return features, labels

    def clipped_mean(
        self, models: FloatArray, draw: Draw, bounds: FloatArray, shares: FloatArray
    ) -> FloatArray:
        """Return Σ shares·clip(g, C)."""
        features, labels = draw
        logits = np.matmul(models.transpose(1, 0, 2), features.transpose(0, 2, 1))
        residuals = expit(logits.transpose(1, 0, 2)) - labels
        norms = np.abs(residuals) * np.linalg.norm(features, axis=-1)
        factors = np.minimum(1, bounds[:, None, :] / np.maximum(norms, 1e-300))
        weighted = factors * residuals * shares[:, None, :]
        return np.asarray(np.matmul(weighted.transpose(1, 0, 2), features).transpose(1, 0, 2))

    def error(self, models: FloatArray) -> FloatArray:
        """Return f(w) − f*."""
        features = self._test_features()
        truth, logits = features @ self.optimum, models @ features.T
        divergence = np.logaddexp(0, logits) - np.logaddexp(0, truth)
        return np.asarray((divergence - expit(truth) * (logits - truth)).mean(-1))

    def gradient(self, models: FloatArray) -> FloatArray:
        """Return ∇f(w)."""
        features = self._test_features()
        residuals = expit(models @ features.T) - expit(features @ self.optimum)
        return np.asarray(residuals @ features / len(features))

    def _test_features(self) -> FloatArray:
        random = np.random.default_rng(0)
        return random.normal(size=(self.test_examples, self.dimension)) * self.scales
