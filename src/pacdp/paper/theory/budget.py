"""The best number of rounds when all of them share one budget, measured."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pacdp.paper.theory.descent import DescentRun, ErrorMeasure, run_descent
from pacdp.paper.theory.problems import Logistic, Problem, Quadratic
from pacdp.paper.theory.rates import RateParameters, Theorem
from pacdp.privacy import mu_for
from pacdp.validation import FloatArray

EPSILONS = (1.0, 3.0, 10.0)
DELTA = 1e-5
# Candidate step sizes, as shares of the largest one, which is the last.
STEP_SHARES = tuple(np.geomspace(0.01, 1.0, 7).tolist())


@dataclass(frozen=True, eq=False)
class RoundsAtBudget:
    """Errors over T at one total (ε, δ), and the best T according to the bound."""

    theorem: Theorem
    epsilon: float
    rounds: tuple[int, ...]
    errors: FloatArray
    """With one step size for all T: (rounds, repeats)."""
    tuned: FloatArray
    """With the best step size for each T: (rounds, repeats)."""
    predicted: int
    """The T with the smallest bound."""

    @property
    def measured(self) -> int:
        """Return the T with the smallest mean error."""
        return self.rounds[int(self.errors.mean(1).argmin())]

    @property
    def excess(self) -> float:
        """Return the error at the predicted T over the smallest one, interpolated in ln T."""
        mean = self.errors.mean(1)
        predicted = np.interp(math.log(self.predicted), np.log(self.rounds), mean)
        return float(predicted / mean.min())


def measure_rounds_at_budget(*, repeats: int = 24, most: int = 256) -> list[RoundsAtBudget]:
    """Measure strongly convex and convex problems at each budget, with one release per round.

    >>> results = measure_rounds_at_budget(repeats=2, most=8)
    >>> [(result.theorem, result.epsilon) for result in results][:2]
    [('strongly convex', 1.0), ('strongly convex', 3.0)]
    """
    # No gradient is longer than the clipping bounds, so that nothing is clipped.
    run = DescentRun(rounds=1, clients=8, batch=32, clipping_bound=3.0, step=0.5)
    quadratic, logistic = Quadratic(dimension=4), Logistic(dimension=4)
    strongly_convex = {
        "strong_convexity": quadratic.strong_convexity,
        "sampling_variance": quadratic.dimension * quadratic.spread**2,
    }
    convex = {
        "distance": float(np.linalg.norm(logistic.optimum)),
        # An upper bound of the mean of p(1 − p)·‖x‖².
        "sampling_variance": logistic.dimension / 4,
    }
    other = replace(run, clipping_bound=4.0, step=1.6)
    rounds = tuple(sorted({round(value) for value in np.geomspace(1, most, 13)}))
    return [
        *_measure("strongly convex", quadratic, run, "last", rounds, repeats, strongly_convex),
        *_measure("convex", logistic, other, "average", rounds, repeats, convex),
    ]


def _measure(
    theorem: Theorem,
    problem: Problem,
    run: DescentRun,
    measure: ErrorMeasure,
    rounds: tuple[int, ...],
    repeats: int,
    constants: Mapping[str, float],
) -> Iterator[RoundsAtBudget]:
    """Yield the errors at each budget; ``constants`` are those of the theorem's bound."""
    parameters = RateParameters(
        smoothness=problem.smoothness,
        gap=float(problem.error(problem.start)),
        dimension=problem.dimension,
        clients=run.clients,
        batch=run.batch,
        clipping_bound=run.clipping_bound,
        **constants,
    )
    for epsilon in EPSILONS:
        mu = float(mu_for(epsilon, DELTA))
        runs = [
            replace(run, rounds=n, noise_multiplier=math.sqrt(n) / mu, step=run.step * share)
            for n in rounds
            for share in STEP_SHARES
        ]
        errors = run_descent(problem, runs, measure=measure, repeats=repeats)
        table = errors.reshape(len(rounds), len(STEP_SHARES), repeats)
        best = table.mean(-1).argmin(1)
        tuned = table[np.arange(len(rounds)), best]
        predicted = parameters.best_rounds(theorem, step=run.step, epsilon=epsilon, delta=DELTA)
        yield RoundsAtBudget(theorem, epsilon, rounds, table[:, -1], tuned, predicted)
