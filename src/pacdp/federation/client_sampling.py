"""Who takes part in which round: drawn from a seed, and public.

The server sees who takes part, so sampling clients amplifies nothing. What matters is how often a
client is asked: its noise is fixed for a number of participations before that is known.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from pacdp.errors import InputError


def participation_cap(
    *, sampling: str, clients: int, per_round: int, rounds: int, quantile: float | None
) -> int:
    """P_i: how many participations a client's noise is planned for.

    Balanced sampling asks everyone ⌈qT⌉ times at most. Under uniform sampling the number is
    binomial; ``quantile`` is the probability with which a client is never asked more often than
    it can answer, and None plans for every round, so that nobody ever refuses.

    >>> settings = {"clients": 50, "per_round": 25, "rounds": 25}
    >>> participation_cap(sampling="balanced", quantile=None, **settings)
    13
    >>> participation_cap(sampling="uniform", quantile=0.95, **settings)
    17
    """
    if sampling == "balanced":
        return math.ceil(per_round * rounds / clients)
    if quantile is None:
        return rounds
    return max(1, int(binom.ppf(quantile, rounds, per_round / clients)))


def participations_ahead(
    *, sampling: str, clients: int, per_round: int, rounds: int, quantile: float | None, start: int
) -> int:
    """How many participations may come from round ``start`` on, for a client that is asked in it.

    Under balanced sampling it has been asked at least ⌊q·start⌋ times before, of ⌈qT⌉ in all.

    >>> settings = {"clients": 50, "per_round": 25, "rounds": 25}
    >>> participations_ahead(sampling="balanced", quantile=None, start=23, **settings)
    2
    >>> participations_ahead(sampling="uniform", quantile=0.95, start=23, **settings)
    2
    """
    if sampling == "balanced":
        return math.ceil(per_round * rounds / clients) - per_round * start // clients
    if quantile is None:
        return rounds - start
    return 1 + int(binom.ppf(quantile, rounds - start - 1, per_round / clients))


@lru_cache(maxsize=16)
def participants(
    *, sampling: str, clients: int, per_round: int, rounds: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """The clients that are asked in each round.

    ``balanced`` asks those that were asked least so far, ties by chance; ``uniform`` asks anyone.

    >>> drawn = participants(sampling="balanced", clients=4, per_round=2, rounds=4, seed=0)
    >>> sorted(client for chosen in drawn for client in chosen)
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    if not 1 <= per_round <= clients:
        raise InputError(f"clients_per_round = {per_round}: must be from 1 to {clients}")
    random = np.random.default_rng([seed, clients, per_round])
    asked = np.zeros(clients, np.int64)
    drawn = []
    for _ in range(rounds):
        order = random.permutation(clients)
        if sampling == "balanced":
            order = order[np.argsort(asked[order], kind="stable")]
        chosen = np.sort(order[:per_round])
        asked[chosen] += 1
        drawn.append(tuple(chosen.tolist()))
    return tuple(drawn)
