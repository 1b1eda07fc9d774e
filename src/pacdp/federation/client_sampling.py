"""Which clients take part in which round. The schedule is drawn from a seed and public.

The server sees who takes part, so sampling clients does not amplify privacy. What matters is how
often a client is asked: its noise is calibrated for a number of participations before that is
known.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from pacdp.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ClientSampling:
    """How clients are sampled: ``balanced`` asks those asked least so far, ``uniform`` anyone.

    Under uniform sampling the number of participations is binomial, and ``quantile`` is the
    probability with which a client is never asked more often than it can answer. None plans for
    every round, so that no client ever refuses.

    >>> size = {"clients": 50, "per_round": 25, "rounds": 25}
    >>> balanced = ClientSampling(kind="balanced", **size)
    >>> balanced.max_participations, balanced.remaining_participations(start=23)
    (13, 2)
    >>> uniform = ClientSampling(kind="uniform", quantile=0.95, **size)
    >>> uniform.max_participations, uniform.remaining_participations(start=23)
    (17, 2)
    """

    kind: str
    clients: int
    per_round: int
    rounds: int
    quantile: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.clients:
            raise InputError(
                f"clients_per_round = {self.per_round}: must be at least 1 and at most "
                f"{self.clients}"
            )

    @property
    def max_participations(self) -> int:
        """P_i: the number of participations for which a client's noise is calibrated."""
        if self.kind == "balanced":
            return math.ceil(self.per_round * self.rounds / self.clients)
        if self.quantile is None:
            return self.rounds
        return max(1, int(binom.ppf(self.quantile, self.rounds, self.per_round / self.clients)))

    def remaining_participations(self, start: int) -> int:
        """Return how many participations may follow for a client that is asked in round ``start``.

        This round is included. Under balanced sampling the client has been asked at least
        ⌊q·start⌋ times before, of ⌈qT⌉ in all.
        """
        if self.kind == "balanced":
            return self.max_participations - self.per_round * start // self.clients
        later = self.rounds - start - 1
        if self.quantile is None:
            return 1 + later
        return 1 + int(binom.ppf(self.quantile, later, self.per_round / self.clients))

    def draw(self, seed: int) -> tuple[tuple[int, ...], ...]:
        """Draw the clients that are asked in each round.

        >>> sampling = ClientSampling(kind="balanced", clients=4, per_round=2, rounds=4)
        >>> sorted(client for chosen in sampling.draw(seed=0) for client in chosen)
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        random = np.random.default_rng([seed, self.clients, self.per_round])
        times_asked = np.zeros(self.clients, np.int64)
        schedule = []
        for _ in range(self.rounds):
            order = random.permutation(self.clients)
            if self.kind == "balanced":
                order = order[np.argsort(times_asked[order], kind="stable")]
            chosen = np.sort(order[: self.per_round])
            times_asked[chosen] += 1
            schedule.append(tuple(chosen.tolist()))
        return tuple(schedule)
