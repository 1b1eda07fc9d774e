"""Budgets: one ε for all clients, one for each, or levels that are assigned to shares of them."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pacdp.config import Real, Settings
from pacdp.errors import InputError
from pacdp.validation import require_positive


class Levels(Settings):
    """Budget levels and the share of clients with each, as in the paper.

    ``exact`` assigns the levels by largest remainder, and each level to at least one client if
    there are enough; ``sampled`` draws each client's level at random.

    >>> Levels(levels=[0.01, 0.05, 0.5], shares=[0.6, 0.3, 0.1]).counts(4)
    [2, 1, 1]
    """

    levels: tuple[Real, ...] = Field(min_length=1, description="Budget levels ε.")
    shares: tuple[Real, ...] = Field(
        description="Share of clients at each level; must add up to 1."
    )
    assignment: Literal["exact", "sampled"] = Field(
        "exact", description="Assign levels by largest remainder (exact) or at random (sampled)."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.shares) != len(self.levels) or not all(share > 0 for share in self.shares):
            raise ValueError(f"shares {list(self.shares)}: must be one > 0 for each level")
        if abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError(f"shares {list(self.shares)}: add up to {sum(self.shares):g}, not 1")
        return self

    def counts(self, clients: int) -> list[int]:
        """Return the number of clients at each level, by largest remainder."""
        exact = [share * clients for share in self.shares]
        counts = round_to_total(exact, clients)
        # An empty level takes a client from the level that has most above its exact share.
        while 0 in counts and max(counts) > 1:
            several = [n for n in range(len(counts)) if counts[n] > 1]
            counts[max(several, key=lambda n: counts[n] - exact[n])] -= 1
            counts[counts.index(0)] += 1
        return counts

    def assign(self, clients: int, seed: int) -> list[float]:
        """Return each client's budget; which client gets which level is drawn from the seed."""
        random = np.random.default_rng([seed, clients])
        if self.assignment == "sampled":
            drawn = random.choice(len(self.levels), size=clients, p=self.shares)
        else:
            drawn = random.permutation(np.repeat(range(len(self.levels)), self.counts(clients)))
        return [self.levels[level] for level in drawn]


class RecordBudgets(Settings):
    """Budgets of single records (or units), as levels that anybody may know.

    Which record has which level is known to its client only. With ``shares`` the levels are drawn
    at random, for simulations; without them, the records themselves hold their budgets
    (:attr:`pacdp.data.Records.budgets`).

    >>> RecordBudgets(levels=[0.1, 1, 5], shares=[0.7, 0.2, 0.1]).counts(86)
    [60, 17, 9]
    """

    levels: tuple[Real, ...] = Field(
        min_length=1, description="The ε that a record can have, in ascending order."
    )
    shares: tuple[Real, ...] | None = Field(
        None,
        description="Share of each client's records at each level, for simulations. Counts are "
        "exact; which records get which level follows from the seed.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        ascending = all(low < high for low, high in itertools.pairwise((0.0, *self.levels)))
        if not ascending or math.isinf(self.levels[-1]):
            raise ValueError(f"levels {list(self.levels)}: must be finite, > 0 and ascending")
        if self.shares is not None:
            if len(self.shares) != len(self.levels) or min(self.shares) < 0:
                raise ValueError(f"shares {list(self.shares)}: must be one >= 0 for each level")
            if abs(sum(self.shares) - 1) > 1e-9:
                raise ValueError(
                    f"shares {list(self.shares)}: add up to {sum(self.shares):g}, not 1"
                )
        return self

    def counts(self, units: int) -> list[int]:
        """Return how many of a client's units have each level, according to the shares."""
        assert self.shares is not None
        exact = [share * units for share in self.shares]
        return round_to_total(exact, units)

    def draw(self, units: int, *, seed: int, client: int) -> NDArray[np.int64]:
        """Draw the level of each unit of a client, as a number from 0."""
        random = np.random.default_rng([seed, client, 7])
        return random.permutation(np.repeat(np.arange(len(self.levels)), self.counts(units)))


def round_to_total(exact: Sequence[float], total: int) -> list[int]:
    """Round numbers so that they keep their total, by largest remainder.

    >>> round_to_total([2.6, 1.1, 0.3], 4)
    [3, 1, 0]
    """
    counts = [int(number) for number in exact]
    by_remainder = sorted(range(len(exact)), key=lambda n: counts[n] - exact[n])
    for level in by_remainder[: total - sum(counts)]:
        counts[level] += 1
    return counts


Budgets = float | tuple[float, ...] | Levels


def assign_budgets(budgets: Budgets | Sequence[float], clients: int, seed: int) -> list[float]:
    """Return one ε for each client.

    >>> assign_budgets(0.1, clients=3, seed=0)
    [0.1, 0.1, 0.1]
    """
    if isinstance(budgets, Levels):
        assigned = budgets.assign(clients, seed)
    elif isinstance(budgets, int | float):
        assigned = [float(budgets)] * clients
    else:
        assigned = [float(epsilon) for epsilon in budgets]
        if len(assigned) != clients:
            raise InputError(
                f"epsilon: has {len(assigned)} values, must have one for each of {clients} clients"
            )
    return require_positive("epsilon", assigned).tolist()
