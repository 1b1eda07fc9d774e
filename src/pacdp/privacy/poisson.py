"""Releases of Poisson-sampled records, priced by dp-accounting.

Amplification by sampling may be claimed only where each record is drawn independently and the
server cannot see the outcome. Zero-out is dp-accounting's REPLACE_SPECIAL: a null record
contributes zero whether it was drawn or not. Its REPLACE_ONE doubles the sensitivity by itself, so
there it is given 2z.

Importing dp-accounting takes longer than most answers of the exact accountant, so it is imported
only where it is used.
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

# Privacy losses are rounded up to a grid of this share of ε: the answer exceeds the true ε by about
# a part in 10⁵, or in 10⁴ where LARGEST_GRID makes the grid coarser.
RESOLUTION = 5e-5
# The largest number of points of one release's grid, which bounds time and memory.
LARGEST_GRID = 3e5
# Beyond these the distributions no longer fit into a grid, or into floating point.
SMALLEST_Z, LARGEST_Z, LARGEST_COUNT = 1e-4, 1e10, 1e7
# The convolutions run in floating point; below this δ their errors become visible.
SMALLEST_DELTA = 1e-10


def pld_epsilon(releases: Sequence[Release], delta: float, *, coarser: float = 1.0) -> float:
    """Compute an upper bound on ε by privacy-loss distributions, tight to about a part in 10⁴.

    A grid that is so many times ``coarser`` gives a larger bound faster.

    >>> sampled = Release.clipped_sum(
    ...     noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
    ... )
    >>> round(pld_epsilon([sampled], 1e-5), 4)
    0.3471
    """
    if delta < SMALLEST_DELTA:
        raise InputError(f"delta = {delta:g}: accountant pld needs δ >= {SMALLEST_DELTA:g}")
    return _compute_pld_epsilon(tuple(releases), delta, coarser) if releases else 0.0


@lru_cache(maxsize=1024)
def _compute_pld_epsilon(releases: tuple[Release, ...], delta: float, coarser: float) -> float:
    # Cached, because it takes a second and is the same for all clients of one budget.
    for release in releases:
        if not (SMALLEST_Z <= release.z <= LARGEST_Z and release.count <= LARGEST_COUNT):
            raise InputError(
                f"accountant pld: cannot resolve {release.count} releases at z = {release.z:g}; "
                f"z must be {SMALLEST_Z:g} to {LARGEST_Z:g}, releases at most {LARGEST_COUNT:g}"
            )
    from dp_accounting.pld import PLDAccountant

    def compute(interval: float) -> float:
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
    epsilon = compute(interval)
    while resolution * epsilon < interval / 2 and interval > finest:
        interval = max(finest, min(interval / 4, resolution * epsilon))
        epsilon = compute(interval)
    return epsilon


def renyi_epsilon(releases: Sequence[Release], delta: float) -> float:
    """Compute an upper bound on ε by Rényi accounting; covers sampling under zero-out only.

    >>> sampled = Release.clipped_sum(
    ...     noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
    ... )
    >>> round(renyi_epsilon([sampled], 1e-5), 2)
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
    """Convert the releases to dp-accounting's events; those without sampling become one event."""
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
    """Estimate the total μ by the central limit theorem of Bu, Dong, Long and Su (2020)."""

    def squared(release: Release) -> float:
        unsampled = 1 / release.z**2
        # Beyond 100 exp would overflow, and 1/z² is the smaller of the two.
        sampled = release.sampling_rate**2 * math.expm1(min(unsampled, 100.0))
        return release.count * min(unsampled, sampled)

    return math.sqrt(math.fsum(map(squared, releases)))


def _widest_loss(releases: Sequence[Release]) -> float:
    """Compute how large the privacy loss of one release can be, within ten standard deviations."""
    return max(10 / release.z + 0.5 / release.z**2 for release in releases)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp-accounting's warnings about orders that it leaves out, which is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
