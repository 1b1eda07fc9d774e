"""The two questions: what did these releases cost, and how much noise does a budget ask for?"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pacdp.errors import InputError
from pacdp.privacy.accountants import choose, noise_by_search
from pacdp.privacy.guarantee import DEFAULT_DELTA, Adjacency, Guarantee, Scope
from pacdp.privacy.poisson import pld_epsilon
from pacdp.privacy.releases import Release
from pacdp.privacy.root_finding import largest_rate
from pacdp.validation import (
    FloatArray,
    IntArray,
    budget,
    count,
    probability,
    rate,
    single,
    together,
)

# Calibrated noise is larger than the budget asks for by this much, so that K debits of a rounded
# 1/z² still fit into it and `account` of the answer never exceeds the target.
HEADROOM = 1e-11
# How much coarser the grid is on which a sampling rate is looked for at first.
_ROUGH = 30.0


def account(
    releases: Release | Iterable[Release],
    *,
    delta: float = DEFAULT_DELTA,
    accountant: str | None = None,
    scope: Scope | str = Scope.TOTAL,
) -> Guarantee:
    """What the releases certify together or, per release, what the dearest one does alone.

    Without a name the accountant is ``exact``, and ``pld`` where records were Poisson-sampled.

    >>> zero_out = Adjacency.ZERO_OUT
    >>> print(account(Release.clipped_sum(noise_multiplier=10, count=13, adjacency=zero_out)))
    ε = 1.38618 at δ = 1e-05, zero-out (exact)
    """
    releases = [releases] if isinstance(releases, Release) else list(releases)
    if not releases:
        raise InputError("releases: is empty, must hold at least one release")
    adjacencies = {release.adjacency for release in releases}
    if len(adjacencies) > 1:
        raise InputError("releases: have different adjacencies, must share one")
    units = {release.unit for release in releases}
    if len(units) > 1:
        raise InputError(f"releases: are of units {', '.join(sorted(units))}, must share one")
    delta, scope = single("delta", probability("delta", delta)), Scope.parse(scope)
    chosen = choose(accountant, sampled=any(release.sampled for release in releases))
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
    """The noise that budgets ask for: numbers, or arrays with one element per client.

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
    """Noise over sensitivity, σ/S."""

    @property
    def noise_multiplier(self) -> FloatArray:
        """Noise over clipping bound, σ/C: z under zero-out, 2z under replace-one."""
        return self.z * self.adjacency.sensitivity

    def release(self, client: int | tuple[()] = (), *, unit: str = "record") -> Release:
        """All the releases of one client, at its noise.

        >>> plan = calibrate(epsilon=[0.1, 0.5], releases=13)
        >>> print(account(plan.release(1)))
        ε = 0.5 at δ = 1e-05, zero-out (exact)
        """

        def own(name: str) -> Any:
            return single(name, np.asarray(getattr(self, name))[client])

        return Release.clipped_sum(
            noise_multiplier=own("noise_multiplier"),
            adjacency=self.adjacency,
            count=own("releases"),
            sampling_rate=own("sampling_rate"),
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
    """The least noise with which K releases of a clipped sum stay within (ε, δ).

    Vectorised: ``epsilon``, ``releases``, ``delta`` and ``sampling_rate`` broadcast against each
    other. Formal guarantee: ``account`` of the answer is at most ε, and so is the true cost. The
    exact accountant exceeds the least noise by at most 2e-11, relative; where a search is needed
    (``pld``, or any sampling) by at most 2e-6.

    >>> float(calibrate(epsilon=0.1, releases=13).noise_multiplier.round(5))
    110.86914
    """
    adjacency, scope = Adjacency.parse(adjacency), Scope.parse(scope)
    epsilon, delta, count_, q = together(
        epsilon=budget("epsilon", epsilon),
        delta=probability("delta", delta),
        releases=count("releases", releases),
        sampling_rate=rate("sampling_rate", sampling_rate),
    )
    chosen = choose(accountant, sampled=bool(np.any(q < 1)))
    charged = np.ones_like(count_) if scope is Scope.PER_RELEASE else count_
    if np.any(q < 1):
        found = [
            noise_by_search(chosen, float(e), float(d), int(k), adjacency, float(p))
            for e, d, k, p in zip(epsilon.flat, delta.flat, charged.flat, q.flat, strict=True)
        ]
        z = np.reshape(found, epsilon.shape)
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
    """The largest rate q at which K Poisson-sampled releases stay within (ε, δ).

    The answer is the release itself, at that rate; q = 1 where the budget affords every record.
    Its price is at most ε, and q is within 2e-6, relative, of the largest.

    >>> plan = calibrate_sampling_rate(epsilon=0.1, releases=100, noise_multiplier=10)
    >>> account(plan).epsilon <= 0.1
    True
    """
    target = single("epsilon", budget("epsilon", epsilon))
    delta = single("delta", probability("delta", delta))
    whole = Release.clipped_sum(
        noise_multiplier=noise_multiplier, adjacency=Adjacency.parse(adjacency), count=releases
    )
    chosen = choose(accountant, sampled=True)

    def cost(q: float) -> float:
        return chosen.epsilon([replace(whole, sampling_rate=q)], delta)

    def roughly(q: float) -> float:
        return pld_epsilon([replace(whole, sampling_rate=q)], delta, coarser=_ROUGH)

    # A fine grid takes a second each time; a rough one tells where to look, if it tells anything.
    guess = None
    if chosen.name == "pld":
        with suppress(InputError):
            guess = largest_rate(roughly, target)
    return replace(whole, sampling_rate=largest_rate(cost, target, guess=guess))
