"""Selection of the clipping bound C* for one budget from noisy scores of candidate bounds.

C is the clipping bound: the largest L2 norm of an example's gradient after clipping. The candidate
with the highest noisy mean score is often not the best one: near a flat maximum, the selection
changes with the noise. The default rule smooths the scores over ln C and takes the centre of all
bounds that are statistically indistinguishable from the best one.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pacdp.curve.evidence import BoundChoice, Rule
from pacdp.errors import InputError
from pacdp.validation import FloatArray, require_positive

# Points of ln C per grid step at which the smoothed response is evaluated.
_POINTS_PER_STEP = 20
# Width of the smoothing kernel, in grid steps.
_KERNEL_WIDTH = 1.0
_BOOTSTRAP_DRAWS = 400


def select_bound(scores: ArrayLike, bounds: ArrayLike, *, rule: Rule = "plateau") -> BoundChoice:
    """Select the clipping bound C* for one budget.

    ``scores`` is an array of shape (seeds, bounds); higher is better. ``bounds`` are the candidates
    for C, in increasing order.

    The rule ``argmax``, which is the paper's, takes the candidate with the highest mean.
    ``plateau`` smooths the mean over ln C by local quadratic regression and averages ln C with the
    weights exp(−(best − score)/τ), where τ is the standard error of a smoothed mean. Without noise
    this is the maximum, and with noise the centre of the plateau around it.

    >>> bounds = [0.1, 0.2, 0.4, 0.8, 1.6]
    >>> scores = [[0.5, 0.7, 0.8, 0.7, 0.5], [0.52, 0.7, 0.81, 0.7, 0.49]]
    >>> round(select_bound(scores, bounds).bound, 2)
    0.4
    >>> select_bound(scores, bounds, rule="argmax").bound
    0.4
    """
    table = np.atleast_2d(np.asarray(scores, float))
    grid = require_positive("bounds", bounds)
    if grid.ndim != 1 or len(grid) < 3 or np.any(np.diff(grid) <= 0):
        raise InputError("bounds: must be at least three numbers in increasing order")
    if table.ndim != 2 or table.shape[1] != len(grid) or not np.isfinite(table).all():
        raise InputError(
            f"scores: have shape {table.shape}, must be finite and of shape (seeds, {len(grid)})"
        )
    logs, mean, resampled = np.log(grid), table.mean(0), _resample_means(table)
    if rule == "argmax":
        best = int(mean.argmax())
        return BoundChoice(
            bound=grid[best],
            spread=_standard_error(logs[resampled.argmax(1)], len(table)),
            low=grid[best],
            high=grid[best],
            edge=best in (0, len(grid) - 1),
            score=mean[best],
        )
    fine = np.linspace(logs[0], logs[-1], (len(logs) - 1) * _POINTS_PER_STEP + 1)
    smoother = smoothing_matrix(logs, fine)
    tau = _smoothed_standard_error(table, smoother)
    smooth = smoother @ mean
    centre = _plateau_centre(smooth, fine, tau)
    spread = _standard_error(_plateau_centre(resampled @ smoother.T, fine, tau), len(table))
    # With an asymmetric plateau its centre and the maximum differ.
    spread = math.hypot(spread, (centre - fine[smooth.argmax()]) / 2)
    plateau = fine[smooth >= smooth.max() - tau]
    return BoundChoice(
        bound=np.exp(centre),
        spread=spread,
        low=np.exp(plateau[0]),
        high=np.exp(plateau[-1]),
        edge=not logs[1] <= centre <= logs[-2],
        score=np.interp(centre, fine, smooth),
    )


def select_bounds(
    scores: FloatArray, bounds: ArrayLike, *, rule: Rule = "plateau"
) -> list[BoundChoice]:
    """Select C* for each budget from an array of scores of shape (seeds, budgets, bounds).

    >>> scores = np.array([[[0.5, 0.8, 0.5], [0.2, 0.3, 0.4]]])
    >>> [choice.bound for choice in select_bounds(scores, [1, 2, 4], rule="argmax")]
    [2.0, 4.0]
    """
    return [select_bound(table, bounds, rule=rule) for table in scores.swapaxes(0, 1)]


def estimate_score(scores: ArrayLike, bounds: ArrayLike, *, at: float) -> float:
    """Estimate the score at any clipping bound from scores of shape (seeds, bounds).

    >>> round(estimate_score([[0.5, 0.7, 0.8, 0.7]], [0.1, 0.2, 0.4, 0.8], at=0.4), 2)
    0.79
    """
    logs = np.log(require_positive("bounds", bounds))
    point = np.clip(np.log(at), logs[0], logs[-1])
    mean = np.atleast_2d(np.asarray(scores, float)).mean(0)
    estimate = float((smoothing_matrix(logs, np.array([point])) @ mean)[0])
    # A local polynomial can overshoot the range of the scores.
    return min(max(estimate, float(mean.min())), float(mean.max()))


def smoothing_matrix(logs: FloatArray, at: FloatArray) -> FloatArray:
    """Return the matrix S of local quadratic regression: S @ scores is smoothed at the given ln C.

    >>> logs = np.log([0.1, 0.2, 0.4, 0.8])
    >>> bool(np.allclose(smoothing_matrix(logs, logs) @ logs**2, logs**2))
    True
    """
    width = _KERNEL_WIDTH * float(np.mean(np.diff(logs)))
    offset = logs[None, :] - at[:, None]
    weights = np.exp(-0.5 * (offset / width) ** 2) + 1e-6
    powers = np.stack([np.ones_like(offset), offset, offset**2], axis=-1)
    normal = np.einsum("pi,pij,pik->pjk", weights, powers, powers)
    # The value at the point itself is the constant term of the local polynomial.
    constant = np.linalg.solve(normal, np.broadcast_to([[1.0], [0.0], [0.0]], (len(at), 3, 1)))
    return np.einsum("pi,pij,pj->pi", weights, powers, constant[..., 0])


def _resample_means(table: FloatArray) -> FloatArray:
    """Return bootstrap means over seeds."""
    random = np.random.default_rng(0)
    rows: NDArray[np.int64] = random.integers(len(table), size=(_BOOTSTRAP_DRAWS, len(table)))
    return np.asarray(table[rows].mean(1))


def _standard_error(resampled: FloatArray, seeds: int) -> float:
    """Correct the bootstrap's standard error for the number of seeds; zero with one seed."""
    return float(resampled.std()) * math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0


def _smoothed_standard_error(table: FloatArray, smoother: FloatArray) -> float:
    """Return the standard error of a difference of smoothed means, averaged over the grid.

    All candidates share the seeds, so an effect of a seed on all of them cancels.
    """
    if len(table) < 2:
        return 1e-12
    centred = (table - table.mean(1, keepdims=True)) @ smoother.T
    return max(float(np.sqrt(np.mean(centred.var(0, ddof=1)) / len(table))), 1e-12)


def _plateau_centre(smooth: FloatArray, fine: FloatArray, tau: float) -> FloatArray:
    weights = np.exp((smooth - smooth.max(-1, keepdims=True)) / tau)
    return np.asarray((weights @ fine) / weights.sum(-1))
