"""DP-SGD over M clients, for many settings and repeats at once.

All cells see the same examples and the same standard normal draws of noise. What differs between
two cells is then due to their settings, and few repeats tell much.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from pacdp.errors import InputError
from pacdp.paper.theory.problems import Problem
from pacdp.validation import FloatArray, count, member, not_negative, positive_number

Measured = Literal["average", "last", "gradient"]

# Step sizes among which the best is taken, as shares of the largest.
STEPS = tuple(np.geomspace(0.004, 1.0, 17).tolist())


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell: a training with every number named."""

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
            count(name, getattr(self, name))
        for name in ("noise_multiplier", "decay"):
            not_negative(name, getattr(self, name))
        for name in ("clipping_bound", "step"):
            positive_number(name, getattr(self, name))

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of the clients' mean, in each coordinate."""
        noise = self.noise_multiplier * self.clipping_bound / self.batch
        return noise / math.sqrt(self.clients)


def descend(
    problem: Problem,
    runs: Sequence[Run],
    *,
    measured: Measured,
    repeats: int,
    mirrored: bool = False,
    seed: int = 0,
) -> FloatArray:
    """The error of every cell (first axis) in each repeat (second axis).

    - ``average``: f(w̄) − f*, of the mean of all iterates that a step was taken from
    - ``last``: f(w_T) − f*
    - ``gradient``: the mean over rounds of ‖∇f(w_t)‖²

    The mean of M Gaussian noises is Gaussian, and is drawn as one. Where ``mirrored``, each repeat
    is the mean of two trainings on the same examples with opposite noise: what is linear in the
    noise has no mean, and so it does not have to average out.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> quiet, loud = Run(rounds=50, step=0.5), Run(rounds=50, step=0.5, noise_multiplier=1.0)
    >>> problem = Quadratic(dimension=4)
    >>> errors = descend(problem, [quiet, loud], measured="last", repeats=8).mean(1)
    >>> bool(errors[0] < errors[1])
    True
    """
    member("measured", measured, get_args(Measured))
    if not runs:
        raise InputError("runs: there are none, must be at least one")
    random = np.random.default_rng(seed)
    cells, dimension = len(runs), len(problem.start)
    examples = max(run.clients * run.batch for run in runs)
    # A cell with fewer examples takes the first of them.
    sizes = np.array([run.clients * run.batch for run in runs])[:, None]
    shares = np.where(np.arange(examples) < sizes, 1 / sizes, 0.0)
    bounds = np.array([run.clipping_bound for run in runs])[:, None]
    sigmas = np.array([run.sigma for run in runs])[:, None, None]
    lengths = np.array([run.rounds for run in runs])
    steps = np.array([run.step for run in runs])
    decays = np.array([run.decay for run in runs])
    trainings = int(count("repeats", repeats)) * (2 if mirrored else 1)
    shape = (cells, trainings, dimension)
    models = np.broadcast_to(problem.start, shape).copy()
    total, squared = np.zeros(shape), np.zeros(shape[:2])
    for number in range(lengths.max()):
        # Cells that have ended are left as they are.
        going = np.flatnonzero(number < lengths)
        own = models[going]
        if measured == "gradient":
            squared[going] += problem.squared_gradient(own)
        total[going] += own
        draw = problem.draw(random, repeats, examples)
        noise = random.normal(size=(repeats, dimension))
        if mirrored:
            draw = tuple(np.concatenate([part, part]) for part in draw)
            noise = np.concatenate([noise, -noise])
        gradient = problem.clipped_mean(own, draw, bounds[going], shares[going])
        gradient += sigmas[going] * noise
        size = steps[going] / (1 + decays[going] * number)
        models[going] = own - size[:, None, None] * gradient
    if measured == "gradient":
        errors = squared / lengths[:, None]
    else:
        errors = problem.error(models if measured == "last" else total / lengths[:, None, None])
    return errors.reshape(cells, -1, repeats).mean(1)


def noise_part(
    problem: Problem, runs: Sequence[Run], *, measured: Measured, repeats: int
) -> FloatArray:
    """What noise adds to each run's error, on the same examples.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> run = Run(rounds=20, step=0.5, noise_multiplier=1.0)
    >>> bool(noise_part(Quadratic(), [run], measured="last", repeats=32).mean() > 0)
    True
    """
    quiet = [replace(run, noise_multiplier=0.0) for run in runs]
    errors = descend(problem, [*runs, *quiet], measured=measured, repeats=repeats, mirrored=True)
    return np.asarray(errors[: len(runs)] - errors[len(runs) :])


def tuned(problem: Problem, run: Run, *, measured: Measured, repeats: int) -> FloatArray:
    """The run's errors at the constant step, up to its own, that is best in the mean.

    >>> from pacdp.paper.theory.problems import Quadratic
    >>> run = Run(rounds=20, step=1.0, noise_multiplier=1.0)
    >>> tuned(Quadratic(), run, measured="last", repeats=4).shape
    (4,)
    """
    runs = [replace(run, step=run.step * share) for share in STEPS]
    errors = descend(problem, runs, measured=measured, repeats=repeats)
    return np.asarray(errors[errors.mean(1).argmin()])
