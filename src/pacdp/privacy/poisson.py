"""Releases of Poisson-sampled records, priced by dp-accounting.

Amplification by sampling may be claimed only where each record is really drawn by its own coin
and the server cannot see the outcome. Zero-out is dp-accounting's REPLACE_SPECIAL: a null record
contributes zero whether it was drawn or not. Its REPLACE_ONE doubles the sensitivity by itself, so
there it is given 2z.

Importing dp-accounting takes longer than most answers of the exact accountant, so only those who
ask for it wait for it.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from pacdp.errors import InputError
from pacdp.privacy.gaussian import epsilon_for
from pacdp.privacy.guarantee import Adjacency
from pacdp.privacy.releases import Release, total_mu

# Privacy losses are rounded to a grid of this share of ε, towards a larger ε: the answer lies
# above the truth by about a part in 10⁵, or in 10⁴ where the next line makes the grid coarser.
RESOLUTION = 5e-5
# The most points that the grid of one release may have, which bounds time and memory.
LARGEST_GRID = 3e5
# Beyond these the distributions no longer fit into a grid, or into floating point.
SMALLEST_Z, LARGEST_Z, LARGEST_COUNT = 1e-4, 1e10, 1e7
# The convolutions run in floating point; below this δ their errors have been seen to show.
SMALLEST_DELTA = 1e-10


def pld_epsilon(releases: Sequence[Release], delta: float, *, coarser: float = 1.0) -> float:
    """An upper bound on ε by privacy-loss distributions, tight to about a part in 10⁴.

    On a grid that is so many times ``coarser`` it is found faster, and is larger.

    >>> coin = Release.clipped_sum(
    ...     noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
    ... )
    >>> round(pld_epsilon([coin], 1e-5), 4)
    0.3471
    """
    if delta < SMALLEST_DELTA:
        raise InputError(f"delta = {delta:g}: accountant pld needs δ >= {SMALLEST_DELTA:g}")
    return _priced(tuple(releases), delta, coarser) if releases else 0.0


@lru_cache(maxsize=1024)
def _priced(releases: tuple[Release, ...], delta: float, coarser: float) -> float:
    # It takes a second, and clients of one budget ask the same.
    for release in releases:
        if not (SMALLEST_Z <= release.z <= LARGEST_Z and release.count <= LARGEST_COUNT):
            raise InputError(
                f"accountant pld: cannot resolve {release.count} releases at z = {release.z:g}; "
                f"z must be {SMALLEST_Z:g} to {LARGEST_Z:g}, releases at most {LARGEST_COUNT:g}"
            )
    from dp_accounting.pld import PLDAccountant

    def at(interval: float) -> float:
        accountant = PLDAccountant(_relation(releases), interval)
        try:
            for event, count in _events(releases):
                accountant.compose(event, count)
            return float(accountant.get_epsilon(delta))
        except (ArithmeticError, ValueError, MemoryError) as error:
            raise InputError(
                f"accountant pld: cannot price these releases ({type(error).__name__}); "
                "noise must not be far below the clipping bound"
            ) from error

    # The grid must be fine against ε, which is not known yet: start from a guess, then refine.
    resolution, finest = RESOLUTION * coarser, coarser * _widest_loss(releases) / LARGEST_GRID
    mu = _guess_mu(releases)
    interval = max(finest, resolution * max(mu, float(epsilon_for(mu, delta))))
    epsilon = at(interval)
    while resolution * epsilon < interval / 2 and interval > finest:
        interval = max(finest, min(interval / 4, resolution * epsilon))
        epsilon = at(interval)
    return epsilon


def renyi_epsilon(releases: Sequence[Release], delta: float) -> float:
    """An upper bound on ε by Rényi accounting, which covers sampling under zero-out only.

    >>> coin = Release.clipped_sum(
    ...     noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
    ... )
    >>> round(renyi_epsilon([coin], 1e-5), 2)
    0.38
    """
    adjacency = releases[0].adjacency
    if adjacency is not Adjacency.ZERO_OUT:
        raise InputError(
            f"accountant rdp: covers Poisson sampling under zero-out only, not {adjacency}; "
            "use accountant pld"
        )
    from dp_accounting.rdp import RdpAccountant

    orders = np.concatenate([1 + np.geomspace(1e-2, 0.9, 8), np.geomspace(2, 2e4, 100).round()])
    accountant = RdpAccountant(np.unique(orders).tolist(), _relation(releases))
    with _quiet():
        for event, count in _events(releases):
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))


def _relation(releases: Sequence[Release]) -> Any:
    from dp_accounting import NeighboringRelation

    if releases[0].adjacency is Adjacency.ZERO_OUT:
        return NeighboringRelation.REPLACE_SPECIAL
    return NeighboringRelation.REPLACE_ONE


def _events(releases: Sequence[Release]) -> Iterator[tuple[Any, int]]:
    """The releases in dp-accounting's words; those without sampling as the one they amount to."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    def gaussian(z: float) -> Any:
        # Under zero-out σ/C is z; under REPLACE_ONE the library expects σ/C = 2z.
        return GaussianDpEvent(z * releases[0].adjacency.sensitivity)

    unsampled = total_mu(release for release in releases if not release.sampled)
    if unsampled > 0:
        yield gaussian(1 / unsampled), 1
    for release in releases:
        if release.sampled:
            yield PoissonSampledDpEvent(release.sampling_rate, gaussian(release.z)), release.count


def _guess_mu(releases: Sequence[Release]) -> float:
    """Roughly the total μ, by the central limit theorem of Bu, Dong, Long and Su (2020)."""
    squares = (
        release.count * min(1 / release.z**2, _sampled_mu_squared(release)) for release in releases
    )
    return math.sqrt(math.fsum(squares))


def _sampled_mu_squared(release: Release) -> float:
    exponent = min(1 / release.z**2, 100.0)  # beyond that exp overflows, and 1/z² is the smaller
    return release.sampling_rate**2 * math.expm1(exponent)


def _widest_loss(releases: Sequence[Release]) -> float:
    """How far the privacy loss of a single release reaches, out to ten standard deviations."""
    return max(10 / release.z + 0.5 / release.z**2 for release in releases)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp-accounting's warning for each order it leaves out: leaving one out is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
