"""Who asks for which ε: one for all, one for each, or levels that shares of the clients hold."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pacdp.config import Real, Settings
from pacdp.errors import InputError
from pacdp.validation import require_positive


class Levels(Settings):
    """Budget levels and the share of clients that hold each, as in the paper.

    ``exact`` deals the levels out by largest remainder, and every level is held by someone where
    there are enough clients; ``sampled`` draws each client's level by chance.

    >>> Levels(levels=[0.01, 0.05, 0.5], shares=[0.6, 0.3, 0.1]).counts(4)
    [2, 1, 1]
    """

    levels: tuple[Real, ...] = Field(min_length=1, description="Budgets ε.")
    shares: tuple[Real, ...] = Field(description="The share of clients that hold each, sum 1.")
    assignment: Literal["exact", "sampled"] = Field(
        "exact", description="By largest remainder, or by chance."
    )

    @model_validator(mode="after")
    def _checked(self) -> "Levels":
        if len(self.shares) != len(self.levels) or not all(share > 0 for share in self.shares):
            raise ValueError(f"shares {list(self.shares)}: must be one > 0 for each level")
        if abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError(f"shares {list(self.shares)}: add up to {sum(self.shares):g}, not 1")
        return self

    def counts(self, clients: int) -> list[int]:
        """How many clients hold each level, by largest remainder."""
        exact = [share * clients for share in self.shares]
        held = [int(number) for number in exact]
        by_rest = sorted(range(len(exact)), key=lambda n: held[n] - exact[n])
        for level in by_rest[: clients - sum(held)]:
            held[level] += 1
        # A level that nobody holds takes one client from where there are most too many.
        while 0 in held and max(held) > 1:
            rich = [n for n in range(len(held)) if held[n] > 1]
            held[max(rich, key=lambda n: held[n] - exact[n])] -= 1
            held[held.index(0)] += 1
        return held

    def assign(self, clients: int, seed: int) -> list[float]:
        """Each client's budget; who gets which is drawn from the seed."""
        random = np.random.default_rng([seed, clients])
        if self.assignment == "sampled":
            drawn = random.choice(len(self.levels), size=clients, p=self.shares)
        else:
            drawn = random.permutation(np.repeat(range(len(self.levels)), self.counts(clients)))
        return [self.levels[level] for level in drawn]


Budgets = float | tuple[float, ...] | Levels


def assign_budgets(budgets: Budgets | Sequence[float], clients: int, seed: int) -> list[float]:
    """One ε for each client.

    >>> assign_budgets(0.1, clients=3, seed=0)
    [0.1, 0.1, 0.1]
    """
    if isinstance(budgets, Levels):
        found = budgets.assign(clients, seed)
    elif isinstance(budgets, int | float):
        found = [float(budgets)] * clients
    else:
        found = [float(epsilon) for epsilon in budgets]
        if len(found) != clients:
            raise InputError(
                f"epsilon: has {len(found)} values, must have one for each of {clients} clients"
            )
    return require_positive("epsilon", found).tolist()
