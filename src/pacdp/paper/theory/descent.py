"""DP-SGD over M clients, for many settings and repeats at once.

All runs share the examples and the standard normal noise draws. Differences between runs are then
due to their settings, and a few repeats suffice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from pacdp.errors import InputError
from pacdp.paper.theory.problems import Problem
from pacdp.validation import (
    FloatArray,
    require_count,
    require_member,
    require_nonnegative,
    require_positive_number,
)

ErrorMeasure = Literal["average", "last", "gradient"]

# Candidate step sizes, as shares of the largest one.
STEP_SHARES = tuple(np.geomspace(0.004, 1.0, 17).tolist())


@dataclass(frozen=True, kw_only=True)
class DescentRun:
    """The settings of one training."""

    rounds: int
    clients: int = 4
    batch: int = 8
    noise_multiplier: float = 0.0
    clipping_bound: float = 20.0
    step: float
    decay: float = 0.0
    """The step of round t is step/(1 + decay·t)."""

    def __post_init__(self) -> None:
        for name in ("rounds", "clients", "batch"):
            require_count(name, getattr(self, name))
        for name in ("noise_multiplier", "decay"):
            require_nonnegative(name, getattr(self, name))
        for name in ("clipping_bound", "step"):
            require_positive_number(name, getattr(self, name))

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the noise of the clients' mean, in each coordinate."""
        noise = self.noise_multiplier * self.clipping_bound / self.batch
        return noise / math.sqrt(self.clients)


def run_descent(
    problem: Problem,
    runs: Sequence[DescentRun],
    *,
    measure: ErrorMeasure,
    repeats: int,
    mirrored: bool = False,
    seed: int = 0,
) -> FloatArray:
    """Train all runs and return their errors (runs, repeats).

    - ``average``: f(w̄) − f*, for the mean w̄ of all iterates but the last
    - ``last``: f(w_T) − f*
    - ``gradient``: the mean over rounds of ‖∇f(w_t)‖²

    The mean of M Gaussian noises is Gaussian and drawn as one. With ``mirrored``, each repeat is
    the mean of two trainings on the same examples with opposite noise: terms that are linear in
    the noise have mean zero, and cancel exactly.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> runs = [DescentRun(rounds=50, step=0.5, noise_multiplier=z) for z in (0.0, 1.0)]
    >>> errors = run_descent(Quadratic(dimension=4), runs, measure="last", repeats=8).mean(1)
    >>> bool(errors[0] < errors[1])
    True
    """
    require_member("measure", measure, get_args(ErrorMeasure))
    if not runs:
        raise InputError("runs: there are none, must be at least one")
    random = np.random.default_rng(seed)
    dimension = len(problem.start)
    # A run with fewer examples uses the first of them.
    sizes = np.array([run.clients * run.batch for run in runs])[:, None]
    shares = np.where(np.arange(sizes.max()) < sizes, 1 / sizes, 0.0)
    bounds = np.array([run.clipping_bound for run in runs])[:, None]
    sigmas = np.array([run.sigma for run in runs])[:, None, None]
    lengths = np.array([run.rounds for run in runs])
    steps = np.array([run.step for run in runs])
    decays = np.array([run.decay for run in runs])
    shape = (len(runs), int(require_count("repeats", repeats)) * (2 if mirrored else 1), dimension)
    models = np.broadcast_to(problem.start, shape).copy()
    total, squared = np.zeros(shape), np.zeros(shape[:2])
    for number in range(lengths.max()):
        # Runs that have ended keep their model.
        active = np.flatnonzero(number < lengths)
        current = models[active]
        if measure == "gradient":
            squared[active] += (problem.gradient(current) ** 2).sum(-1)
        total[active] += current
        draw = problem.draw(random, repeats, int(sizes.max()))
        noise = random.normal(size=(repeats, dimension))
        if mirrored:
            draw = tuple(np.concatenate([part, part]) for part in draw)
            noise = np.concatenate([noise, -noise])
        gradient = problem.clipped_mean(current, draw, bounds[active], shares[active])
        gradient += sigmas[active] * noise
        step = steps[active] / (1 + decays[active] * number)
        models[active] = current - step[:, None, None] * gradient
    if measure == "gradient":
        errors = squared / lengths[:, None]
    else:
        errors = problem.error(models if measure == "last" else total / lengths[:, None, None])
    return errors.reshape(len(runs), -1, repeats).mean(1)


def measure_noise_part(
    problem: Problem, runs: Sequence[DescentRun], *, measure: ErrorMeasure, repeats: int
) -> FloatArray:
    """Return the error that noise adds to each run, on the same examples.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> run = DescentRun(rounds=20, step=0.5, noise_multiplier=1.0)
    >>> bool(measure_noise_part(Quadratic(), [run], measure="last", repeats=32).mean() > 0)
    True
    """
    noiseless = [replace(run, noise_multiplier=0.0) for run in runs]
    errors = run_descent(
        problem, [*runs, *noiseless], measure=measure, repeats=repeats, mirrored=True
    )
    return np.asarray(errors[: len(runs)] - errors[len(runs) :])


def run_with_best_step(
    problem: Problem, run: DescentRun, *, measure: ErrorMeasure, repeats: int
) -> FloatArray:
    """Return the run's errors at the constant step, up to its own, with the least mean error.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> run = DescentRun(rounds=20, step=1.0, noise_multiplier=1.0)
    >>> run_with_best_step(Quadratic(), run, measure="last", repeats=4).shape
    (4,)
    """
    runs = [replace(run, step=run.step * share) for share in STEP_SHARES]
    errors = run_descent(problem, runs, measure=measure, repeats=repeats)
    return np.asarray(errors[errors.mean(1).argmin()])
