"""How many rounds are best when all of them must share one budget, measured."""

import math
from dataclasses import dataclass, replace

import numpy as np

from pacdp.paper.theory.descent import Measured, Run, descend
from pacdp.paper.theory.problems import Logistic, Quadratic
from pacdp.paper.theory.rates import Task, Theorem, at_budget, best_rounds
from pacdp.privacy import mu_for
from pacdp.validation import FloatArray

EPSILONS = (1.0, 3.0, 10.0)
DELTA = 1e-5
MOST = 256
# Step sizes among which the best is taken for the tuned curve, as shares of the largest.
SHARES = tuple(np.geomspace(0.01, 1.0, 7).tolist())


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundsAtBudget:
    """Errors over T at one total (ε, δ), and what the bound says of them."""

    theorem: Theorem
    epsilon: float
    delta: float
    rounds: tuple[int, ...]
    errors: FloatArray
    """With one step size for all T: (rounds, repeats)."""
    tuned: FloatArray
    """With the best step size for each T: (rounds, repeats)."""
    bound: FloatArray
    """The bound at each T."""
    predicted: int
    """The T with the least bound."""

    @property
    def measured(self) -> int:
        """The T with the least mean error."""
        return self.rounds[int(self.errors.mean(1).argmin())]

    @property
    def lost(self) -> float:
        """Error at the predicted T over that at the best, by interpolation in ln T."""
        mean = self.errors.mean(1)
        there = np.interp(math.log(self.predicted), np.log(self.rounds), mean)
        return float(there / mean.min())


def rounds_at_budget(*, repeats: int = 24, most: int = MOST) -> list[RoundsAtBudget]:
    """Strongly convex and convex, at each of the budgets, one release a round.

    >>> found = rounds_at_budget(repeats=2, most=8)
    >>> [(one.theorem, one.epsilon) for one in found][:2]
    [('strongly convex', 1.0), ('strongly convex', 3.0)]
    """
    rounds = tuple(sorted({round(value) for value in np.geomspace(1, most, 13)}))
    # No gradient is longer than the bound, so that nothing is clipped.
    quadratic = Quadratic(dimension=4)
    logistic = Logistic(dimension=4)
    base = Run(rounds=1, clients=8, batch=32, clipping_bound=3.0, step=0.5)
    wide = replace(base, clipping_bound=4.0, step=1.6)
    one_task = Task(
        smoothness=quadratic.smoothness,
        strong_convexity=quadratic.strong_convexity,
        gap=float(quadratic.error(quadratic.start)),
        sampling_variance=quadratic.dimension * quadratic.spread**2,
        dimension=quadratic.dimension,
        clients=base.clients,
        batch=base.batch,
        clipping_bound=base.clipping_bound,
    )
    other_task = replace(
        one_task,
        smoothness=logistic.smoothness,
        strong_convexity=0.0,
        gap=float(logistic.error(logistic.start)),
        distance=float(np.linalg.norm(logistic.optimum)),
        # p(1 − p)·‖x‖² is at most this in the mean.
        sampling_variance=logistic.dimension / 4,
        clipping_bound=wide.clipping_bound,
    )
    cases: list[tuple[Theorem, Quadratic | Logistic, Task, Run, Measured]] = [
        ("strongly convex", quadratic, one_task, base, "last"),
        ("convex", logistic, other_task, wide, "average"),
    ]
    found = []
    for theorem, problem, task, run, measured in cases:
        for epsilon in EPSILONS:
            mu = float(mu_for(epsilon, DELTA))
            runs = [replace(run, rounds=n, noise_multiplier=math.sqrt(n) / mu) for n in rounds]
            every = [replace(one, step=one.step * share) for one in runs for share in SHARES]
            errors = descend(problem, every, measured=measured, repeats=repeats)
            table = errors.reshape(len(rounds), len(SHARES), repeats)
            best = table.mean(-1).argmin(1)
            after = at_budget(theorem, task, step=run.step, epsilon=epsilon, delta=DELTA)
            found.append(
                RoundsAtBudget(
                    theorem=theorem,
                    epsilon=epsilon,
                    delta=DELTA,
                    rounds=rounds,
                    # The last share is the whole step.
                    errors=table[:, -1],
                    tuned=table[np.arange(len(rounds)), best],
                    bound=np.array([after(n) for n in rounds]),
                    predicted=best_rounds(
                        theorem, task, step=run.step, epsilon=epsilon, delta=DELTA
                    ),
                )
            )
    return found
