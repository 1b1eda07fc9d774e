"""Accounting for releases, and calibrating noise to a budget."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.privacy.accountants import choose_accountant, search_noise
from pacdp.privacy.guarantee import DEFAULT_DELTA, Adjacency, Guarantee, Scope
from pacdp.privacy.poisson import pld_epsilon
from pacdp.privacy.releases import Release
from pacdp.privacy.root_finding import largest_rate
from pacdp.validation import (
    FloatArray,
    IntArray,
    broadcast_together,
    require_budget,
    require_count,
    require_probability,
    require_rate,
    require_scalar,
)

# Calibrated noise is larger than necessary by this much, so that K debits of a rounded 1/z² still
# fit into the budget and `account` of the answer never exceeds the target.
HEADROOM = 1e-11
# How much coarser the grid is on which a sampling rate is searched first.
_COARSER = 30.0


def account(
    releases: Release | Iterable[Release],
    *,
    delta: float = DEFAULT_DELTA,
    accountant: str | None = None,
    scope: Scope | str = Scope.TOTAL,
) -> Guarantee:
    """Compute what the releases certify together or, per release, the most expensive one alone.

    The default accountant is ``exact``, or ``pld`` where records were Poisson-sampled.

    >>> zero_out = Adjacency.ZERO_OUT
    >>> print(account(Release.clipped_sum(noise_multiplier=10, count=13, adjacency=zero_out)))
    ε = 1.38618 at δ = 1e-05, zero-out (exact)

    Where records have budget levels, this is the largest guarantee of any level.
    """
    releases = [releases] if isinstance(releases, Release) else list(releases)
    if not releases:
        raise InputError("releases: is empty, must hold at least one release")
    levels = max(len(release.levels) for release in releases)
    if levels:
        parts = [[r for r in (r.at_level(j) for r in releases) if r] for j in range(levels)]
        guarantees = [
            account(part, delta=delta, accountant=accountant, scope=scope) for part in parts if part
        ]
        return max(guarantees, key=lambda guarantee: guarantee.epsilon)
    adjacencies = {release.adjacency for release in releases}
    if len(adjacencies) > 1:
        raise InputError("releases: have different adjacencies, must share one")
    units = {release.unit for release in releases}
    if len(units) > 1:
        raise InputError(f"releases: are of units {', '.join(sorted(units))}, must share one")
    delta, scope = require_scalar("delta", require_probability("delta", delta)), Scope.parse(scope)
    chosen = choose_accountant(accountant, sampled=any(release.sampled for release in releases))
    if scope is Scope.PER_RELEASE:
        epsilon = max(chosen.epsilon([release.times(1)], delta) for release in releases)
    else:
        epsilon = chosen.epsilon(releases, delta)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacencies.pop(),
        accountant=chosen.name,
        scope=scope,
        unit=units.pop(),
    )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The noise that budgets require: numbers, or arrays with one element per client.

    ``z`` is noise over sensitivity, σ/S.

    >>> calibrate(epsilon=[0.1, 1], releases=13, adjacency="replace-one").noise_multiplier.round(2)
    array([221.74,  26.9 ])
    """

    epsilon: FloatArray
    delta: FloatArray
    releases: IntArray
    sampling_rate: FloatArray
    adjacency: Adjacency
    accountant: str
    scope: Scope
    z: FloatArray

    @property
    def noise_multiplier(self) -> FloatArray:
        """Noise over clipping bound, σ/C: z under zero-out, 2z under replace-one."""
        return self.z * self.adjacency.sensitivity

    def release(self, client: int | tuple[()] = (), *, unit: str = "record") -> Release:
        """Return all the releases of one client, at its noise.

        >>> plan = calibrate(epsilon=[0.1, 0.5], releases=13)
        >>> print(account(plan.release(1)))
        ε = 0.5 at δ = 1e-05, zero-out (exact)
        """

        def value(name: str) -> Any:
            return require_scalar(name, np.asarray(getattr(self, name))[client])

        return Release.clipped_sum(
            noise_multiplier=value("noise_multiplier"),
            adjacency=self.adjacency,
            count=value("releases"),
            sampling_rate=value("sampling_rate"),
            unit=unit,
        )


def calibrate(
    *,
    epsilon: ArrayLike,
    releases: ArrayLike,
    delta: ArrayLike = DEFAULT_DELTA,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    accountant: str | None = None,
    scope: Scope | str = Scope.TOTAL,
    sampling_rate: ArrayLike = 1.0,
) -> Calibration:
    """Compute the least noise with which K releases of a clipped sum stay within (ε, δ).

    Vectorised: ``epsilon``, ``releases``, ``delta`` and ``sampling_rate`` broadcast against each
    other. Formal guarantee: ``account`` of the answer is at most ε, and so is the true cost. The
    answer exceeds the least noise by at most 2e-11, relative, with the exact accountant, and by at
    most 2e-6 where a search is needed (``pld``, or any sampling).

    >>> float(calibrate(epsilon=0.1, releases=13).noise_multiplier.round(5))
    110.86914
    """
    adjacency, scope = Adjacency.parse(adjacency), Scope.parse(scope)
    epsilon, delta, count_, q = broadcast_together(
        epsilon=require_budget("epsilon", epsilon),
        delta=require_probability("delta", delta),
        releases=require_count("releases", releases),
        sampling_rate=require_rate("sampling_rate", sampling_rate),
    )
    chosen = choose_accountant(accountant, sampled=bool(np.any(q < 1)))
    charged = np.ones_like(count_) if scope is Scope.PER_RELEASE else count_
    if np.any(q < 1):
        z = search_noise(chosen, epsilon, delta, charged, q, adjacency)
    else:
        z = chosen.z(epsilon, delta, charged) * (1 + HEADROOM)
    return Calibration(
        epsilon=epsilon[()],
        delta=delta[()],
        releases=count_[()],
        sampling_rate=q[()],
        adjacency=adjacency,
        accountant=chosen.name,
        scope=scope,
        z=z[()],
    )


def calibrate_sampling_rate(
    *,
    epsilon: float,
    releases: int,
    noise_multiplier: float,
    delta: float = DEFAULT_DELTA,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    accountant: str = "pld",
) -> Release:
    """Compute the largest rate q at which K Poisson-sampled releases stay within (ε, δ).

    The answer is the release itself, at that rate; q = 1 if the budget covers every record.
    Its cost is at most ε, and q is within 2e-6, relative, of the largest.

    >>> plan = calibrate_sampling_rate(epsilon=0.1, releases=100, noise_multiplier=10)
    >>> account(plan).epsilon <= 0.1
    True
    """
    target = require_scalar("epsilon", require_budget("epsilon", epsilon))
    delta = require_scalar("delta", require_probability("delta", delta))
    whole = Release.clipped_sum(
        noise_multiplier=noise_multiplier, adjacency=Adjacency.parse(adjacency), count=releases
    )
    chosen = choose_accountant(accountant, sampled=True)

    def cost(q: float) -> float:
        return chosen.epsilon([replace(whole, sampling_rate=q)], delta)

    def approximate_cost(q: float) -> float:
        return pld_epsilon([replace(whole, sampling_rate=q)], delta, coarser=_COARSER)

    # A fine grid takes a second each time; a coarse one, where it works, says where to search.
    guess = None
    if chosen.name == "pld":
        with suppress(InputError):
            guess = largest_rate(approximate_cost, target)
    return replace(whole, sampling_rate=largest_rate(cost, target, guess=guess))
