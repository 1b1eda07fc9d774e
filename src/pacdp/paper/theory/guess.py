"""The surrogate's guess of C* against what a grid of trainings finds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pacdp.curve import select_thresholds
from pacdp.data import proxy_for
from pacdp.federation import Optimiser, Recipe, Training
from pacdp.offline import Grid, Setting
from pacdp.offline.grid import run_grid
from pacdp.paper.theory.surrogate import surrogate_bounds
from pacdp.validation import FloatArray

BUDGETS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BOUNDS = tuple(np.geomspace(0.003, 10, 13).tolist())
RATES = (0.1, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Guess:
    """C* of a grid at one learning rate, and the surrogate's, which knows no learning rate."""

    learning_rate: float
    budgets: tuple[float, ...]
    found: FloatArray
    low: FloatArray
    high: FloatArray
    """The bounds that the grid cannot tell from C*."""
    guessed: FloatArray
    """With κ = 1/K, the default."""
    paper: FloatArray
    """With κ = 1, as the paper's J has it when nothing is said of κ."""
    scores: FloatArray
    """The mean score of the grid: (budgets, bounds)."""
    bounds: tuple[float, ...]

    def off(self, guess: FloatArray) -> float:
        """Root mean square of ln(guess/C*)."""
        return float(np.sqrt(np.mean(np.log(guess / self.found) ** 2)))

    def lost(self, guess: FloatArray) -> FloatArray:
        """The best score of the grid minus that of its bound nearest to the guess, per budget."""
        grid = np.log(self.bounds)
        nearest = np.abs(grid[None, :] - np.log(guess)[:, None]).argmin(1)
        reached = self.scores[np.arange(len(self.budgets)), nearest]
        return np.asarray(self.scores.max(1) - reached)


def heart_like(learning_rate: float, *, rounds: int = 20) -> Setting:
    """Four hospitals of Heart's sizes, with synthetic records.

    >>> heart_like(0.1).recipe.training.rounds
    20
    """
    return Setting(
        proxy=proxy_for("heart", "synthetic"),
        sizes={"Cleveland": 303, "Hungary": 261, "Switzerland": 46, "Long Beach": 130},
        recipe=Recipe(
            training=Training(rounds=rounds, local_steps=1, optimiser=Optimiser(lr=learning_rate))
        ),
    )


def guesses(
    *,
    rates: Sequence[float] = RATES,
    budgets: Sequence[float] = BUDGETS,
    bounds: Sequence[float] = BOUNDS,
    seeds: int = 8,
    rounds: int = 20,
) -> list[Guess]:
    """One grid for each learning rate.

    >>> found = guesses(rates=[1.0], budgets=[0.1, 10.0], bounds=[0.1, 1, 10], seeds=2, rounds=3)
    >>> bool(found[0].guessed[0] < found[0].guessed[1])
    True
    """
    made = []
    for learning_rate in rates:
        setting = heart_like(learning_rate, rounds=rounds)
        matrix = run_grid(setting, Grid(tuple(budgets), tuple(bounds), tuple(range(seeds))))
        choices = select_thresholds(matrix.scores, bounds)
        made.append(
            Guess(
                learning_rate=learning_rate,
                budgets=tuple(budgets),
                found=np.array([choice.bound for choice in choices]),
                low=np.array([choice.low for choice in choices]),
                high=np.array([choice.high for choice in choices]),
                guessed=surrogate_bounds(setting, budgets),
                paper=surrogate_bounds(setting, budgets, kappa=1.0),
                scores=matrix.mean,
                bounds=tuple(bounds),
            )
        )
    return made
