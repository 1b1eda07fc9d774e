"""Which clipping bound a budget wants, from noisy scores of a few candidates.

The largest of several noisy means is often not the best candidate but the luckiest. Where the top
is flat, as it is here, the choice jumps about from one draw of the noise to the next. The default
therefore asks what the scores can tell: it smooths them over ln C, and takes the middle of all that
cannot be told from the best.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pacdp.errors import InputError
from pacdp.validation import FloatArray, positive

Rule = Literal["plateau", "argmax"]

# Points of ln C at which the smooth response is asked, for each step of the grid.
_FINE = 20
# Width of the smoothing kernel, in steps of the grid.
_WIDTH = 1.0
# Draws of the bootstrap over seeds.
_DRAWS = 400


@dataclass(frozen=True)
class Choice:
    """C* of one budget, and how sure it is."""

    bound: float
    spread: float
    """Standard error of ln C*, from drawing seeds again and from how lopsided the top is."""
    low: float
    high: float
    """The bounds that cannot be told from the best."""
    edge: bool
    """Whether it lies within a step of the grid's edge, so that the best may lie beyond."""
    score: float
    """What is expected at C*."""


def choose(scores: ArrayLike, bounds: ArrayLike, *, rule: Rule = "plateau") -> Choice:
    """C* from scores (seeds, bounds), higher being better.

    ``argmax`` is the paper's: the candidate with the highest mean. ``plateau`` smooths the mean
    over ln C by local quadratic regression, and weighs each ln C by exp(−(best − score)/τ) with τ
    the standard error of a smoothed mean: without noise that is the maximum, and with noise the
    middle of what is as good.

    >>> bounds = [0.1, 0.2, 0.4, 0.8, 1.6]
    >>> scores = [[0.5, 0.7, 0.8, 0.7, 0.5], [0.52, 0.7, 0.81, 0.7, 0.49]]
    >>> round(choose(scores, bounds).bound, 2), choose(scores, bounds, rule="argmax").bound
    (0.4, 0.4)
    """
    table = np.atleast_2d(np.asarray(scores, float))
    grid = positive("bounds", bounds)
    if grid.ndim != 1 or len(grid) < 3 or np.any(np.diff(grid) <= 0):
        raise InputError("bounds: must be at least three, rising")
    if table.ndim != 2 or table.shape[1] != len(grid) or not np.isfinite(table).all():
        raise InputError(
            f"scores: have shape {table.shape}, must be finite numbers (seeds, {len(grid)})"
        )
    logs = np.log(grid)
    mean = table.mean(0)
    drawn = _resampled(table)
    if rule == "argmax":
        best = int(mean.argmax())
        return Choice(
            bound=float(grid[best]),
            spread=_corrected(logs[drawn.argmax(1)], len(table)),
            low=float(grid[best]),
            high=float(grid[best]),
            edge=best in (0, len(grid) - 1),
            score=float(mean[best]),
        )
    fine = np.linspace(logs[0], logs[-1], (len(logs) - 1) * _FINE + 1)
    smoother = smoothing_matrix(logs, fine)
    error = _standard_error(table, smoother)
    smooth, redrawn = smoother @ mean, drawn @ smoother.T
    centre = _centre(smooth, fine, error)
    spread = _corrected(_centre(redrawn, fine, error), len(table))
    # Where the top is not symmetric, its middle and its highest point lie apart.
    spread = math.hypot(spread, (centre - fine[smooth.argmax()]) / 2)
    near = fine[smooth >= smooth.max() - error]
    return Choice(
        bound=float(np.exp(centre)),
        spread=spread,
        low=float(np.exp(near[0])),
        high=float(np.exp(near[-1])),
        edge=not logs[1] <= centre <= logs[-2],
        score=float(np.interp(centre, fine, smooth)),
    )


def smoothed(scores: ArrayLike, bounds: ArrayLike, *, at: float) -> float:
    """What is expected at a bound, from scores (seeds, bounds) of others.

    >>> round(smoothed([[0.5, 0.7, 0.8, 0.7]], [0.1, 0.2, 0.4, 0.8], at=0.4), 2)
    0.79
    """
    logs = np.log(positive("bounds", bounds))
    where = np.clip(np.log(at), logs[0], logs[-1])
    mean = np.atleast_2d(np.asarray(scores, float)).mean(0)
    # A local polynomial may swing a little beyond what was seen.
    found = float((smoothing_matrix(logs, np.array([where])) @ mean)[0])
    return min(max(found, float(mean.min())), float(mean.max()))


def smoothing_matrix(logs: FloatArray, at: FloatArray) -> FloatArray:
    """The matrix S of local quadratic regression: S @ scores is the smooth response ``at`` ln C.

    >>> logs = np.log([0.1, 0.2, 0.4, 0.8])
    >>> bool(np.allclose(smoothing_matrix(logs, logs) @ logs**2, logs**2))
    True
    """
    width = _WIDTH * float(np.mean(np.diff(logs)))
    away = logs[None, :] - at[:, None]
    weights = np.exp(-0.5 * (away / width) ** 2) + 1e-6
    powers = np.stack([np.ones_like(away), away, away**2], axis=-1)
    normal = np.einsum("pi,pij,pik->pjk", weights, powers, powers)
    # The value at the point itself is the constant of the local polynomial.
    solved = np.linalg.solve(normal, np.broadcast_to([[1.0], [0.0], [0.0]], (len(at), 3, 1)))
    return np.einsum("pi,pij,pj->pi", weights, powers, solved[..., 0])


def _resampled(table: FloatArray) -> FloatArray:
    """Means over seeds that were drawn again with replacement."""
    random = np.random.default_rng(0)
    picked: NDArray[np.int64] = random.integers(len(table), size=(_DRAWS, len(table)))
    return np.asarray(table[picked].mean(1))


def _corrected(redrawn: FloatArray, seeds: int) -> float:
    """The standard error that a bootstrap over few seeds stands for; zero with one seed."""
    return float(redrawn.std()) * math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0


def _standard_error(table: FloatArray, smoother: FloatArray) -> float:
    """The standard error of the difference of two smoothed means, typical over the grid.

    Seeds are shared by all candidates, so what a seed does to all of them alike cancels.
    """
    if len(table) < 2:
        return 1e-12
    apart = (table - table.mean(1, keepdims=True)) @ smoother.T
    return max(float(np.sqrt(np.mean(apart.var(0, ddof=1)) / len(table))), 1e-12)


def _centre(smooth: FloatArray, fine: FloatArray, error: float) -> FloatArray:
    weights = np.exp((smooth - smooth.max(-1, keepdims=True)) / error)
    return np.asarray((weights @ fine) / weights.sum(-1))
