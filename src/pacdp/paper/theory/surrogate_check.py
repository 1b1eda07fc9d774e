"""The surrogate's prediction of C* against the C* of a simulated grid."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pacdp.curve import BoundChoice, select_bounds
from pacdp.data import load_proxy
from pacdp.federation import Optimiser, Recipe, Training
from pacdp.offline import Grid, Matrix, ProxyTask
from pacdp.offline.grid import run_grid
from pacdp.paper.theory.surrogate import predict_thresholds
from pacdp.validation import FloatArray

BUDGETS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BOUNDS = tuple(np.geomspace(0.003, 10, 13).tolist())
RATES = (0.1, 1.0)


@dataclass(frozen=True, eq=False)
class SurrogateCheck:
    """C* of a grid at one learning rate, and the surrogate's, which has no learning rate."""

    learning_rate: float
    matrix: Matrix
    choices: list[BoundChoice]
    predicted: dict[str, FloatArray]
    """By κ: 1/K is the default, and 1 the paper's J, which leaves κ open."""

    @property
    def selected(self) -> FloatArray:
        """Return C* of the grid for each budget."""
        return np.array([choice.bound for choice in self.choices])

    def error_factor(self, predicted: FloatArray) -> float:
        """Return the root mean square of ln(prediction/C*), as a factor."""
        return float(np.exp(np.sqrt(np.mean(np.log(predicted / self.selected) ** 2))))

    def lost_score(self, predicted: FloatArray) -> float:
        """Return the mean difference between the grid's best score and that at the prediction."""
        distances = np.abs(np.log(self.matrix.bounds) - np.log(predicted)[:, None])
        scores = self.matrix.mean
        reached = scores[np.arange(len(scores)), distances.argmin(1)]
        return float((scores.max(1) - reached).mean())


def make_heart_proxy_task(learning_rate: float, *, rounds: int = 20) -> ProxyTask:
    """Return a training of four hospitals of Heart's sizes, with synthetic records.

    >>> make_heart_proxy_task(0.1).recipe.training.rounds
    20
    """
    return ProxyTask(
        proxy=load_proxy("heart", "synthetic"),
        sizes={"Cleveland": 303, "Hungary": 261, "Switzerland": 46, "Long Beach": 130},
        recipe=Recipe(
            training=Training(rounds=rounds, local_steps=1, optimiser=Optimiser(lr=learning_rate))
        ),
    )


def check_surrogate(
    *,
    rates: Sequence[float] = RATES,
    budgets: Sequence[float] = BUDGETS,
    bounds: Sequence[float] = BOUNDS,
    seeds: int = 8,
    rounds: int = 20,
) -> list[SurrogateCheck]:
    """Simulate a grid for each learning rate and compare its C* with the surrogate's.

    >>> (check,) = check_surrogate(
    ...     rates=[1.0], budgets=[0.1, 10.0], bounds=[0.1, 1, 10], seeds=2, rounds=3
    ... )
    >>> bool(check.predicted["1/K"][0] < check.predicted["1/K"][1])
    True
    """
    checks = []
    for learning_rate in rates:
        proxy_task = make_heart_proxy_task(learning_rate, rounds=rounds)
        matrix = run_grid(proxy_task, Grid(tuple(budgets), tuple(bounds), tuple(range(seeds))))
        predicted = {
            "1/K": predict_thresholds(proxy_task, budgets),
            "1": predict_thresholds(proxy_task, budgets, kappa=1.0),
        }
        choices = select_bounds(matrix.scores, bounds)
        checks.append(SurrogateCheck(learning_rate, matrix, choices, predicted))
    return checks
