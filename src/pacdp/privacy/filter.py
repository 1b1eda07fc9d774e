"""Privacy filters: budgets that are spent by releases chosen adaptively.

Formal guarantee. Gaussian releases may be chosen adaptively, each from all that was seen before:
while Σ 1/z² ≤ μ² the whole stays (ε, δ)-private, because Gaussian releases are ordered by their μ
alone. Poisson-sampled releases are not ordered so. Two plans of equal total cost can differ in
*where* they leak, and choosing between them after seeing earlier releases could cost more than
either. They are therefore accepted only as a plan (q, σ, K), frozen and charged as a whole before
the first release of any kind; Gaussian releases may then be chosen within what is left.

Records may have budgets of their own, in *levels*. A filter then consists of one filter for each
level (:attr:`Filter.by_level`), with the level's own ε and what each release was to its records; a
release must fit all of them. The budget of the filter itself is a cap on every level.

Filters are immutable: spending returns a new one, and a refusal changes nothing.

>>> from pacdp.privacy import Adjacency, Filter, Guarantee, Release
>>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
>>> noisy = Release.clipped_sum(noise_multiplier=20, adjacency=Adjacency.ZERO_OUT)
>>> after = Filter(budget).spend(noisy.times(7))
>>> after.affordable(noisy)
1
>>> print(after.realised)
ε = 0.462089 at δ = 1e-05, zero-out (exact)
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter

from pacdp.errors import BudgetExceededError, InputError
from pacdp.privacy.accounting import account
from pacdp.privacy.gaussian import mu_for
from pacdp.privacy.guarantee import Guarantee, Scope
from pacdp.privacy.releases import Release, total_mu
from pacdp.privacy.root_finding import smallest_noise
from pacdp.validation import LARGEST_COUNT, require_budget, require_scalar

# A remaining share of μ² below this is what calibration's headroom leaves, and counts as nothing.
NEGLIGIBLE = 1e-9

# Kinds of releases (each with count 1), and how often they were made or promised.
Tally = Counter[Release]


@dataclass(frozen=True)
class Filter:
    """A budget, what has been spent of it, and the sampled plans frozen into it."""

    budget: Guarantee
    spent: Tally = field(default_factory=Counter)
    frozen: Tally = field(default_factory=Counter)
    levels: tuple[float, ...] = ()
    """The declared ε of each budget level, by which levels are known; empty if all records have the
    budget."""
    level_budgets: tuple[float, ...] = ()
    """The ε of each level now, which the budget caps; by default the declared one."""

    def __post_init__(self) -> None:
        if self.budget.epsilon <= 0:
            raise InputError(f"epsilon = {self.budget.epsilon:g}: a budget must be > 0")
        if self.budget.scope is not Scope.TOTAL or self.budget.accountant != "exact":
            raise InputError("budget: must be a total one, measured exactly")
        # A budget for which no noise can be computed is refused now, not at the first release.
        _ = self.mu_limit
        if self.levels:
            self._check_levels()

    def _check_levels(self) -> None:
        for name, given in (
            ("levels", self.levels),
            ("level_budgets", self.level_budgets or self.levels),
        ):
            checked = tuple(require_scalar("level", require_budget("level", e)) for e in given)
            object.__setattr__(self, name, checked)
        if not all(low < high for low, high in itertools.pairwise(self.levels)):
            shown = ", ".join(f"{epsilon:g}" for epsilon in self.levels)
            raise InputError(f"levels {shown}: must be > 0 and ascending")
        if len(self.level_budgets) != len(self.levels):
            raise InputError(
                f"level_budgets: are {len(self.level_budgets)}, must be one for each level"
            )

    @cached_property
    def by_level(self) -> tuple["Filter", ...]:
        """The filter of each level; without levels, only the filter itself.

        >>> from pacdp.privacy import Adjacency
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> [state.budget.epsilon for state in Filter(budget, levels=(0.1, 2.0)).by_level]
        [0.1, 0.5]
        """
        if not self.levels:
            return (self,)
        return tuple(
            Filter(
                replace(self.budget, epsilon=min(epsilon, self.budget.epsilon)),
                spent=_at_level(self.spent, level),
                # Levels of a sampled plan that are not sampled themselves are spent as it is made.
                frozen=_sampled(_at_level(self.frozen, level)),
            )
            for level, epsilon in enumerate(self.level_budgets)
        )

    def spend(self, *releases: Release) -> "Filter":
        """Return the filter after these releases, all or none; over the budget they are refused.

        >>> from pacdp.privacy import Adjacency
        >>> state = Filter(Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT))
        >>> noisy = Release.clipped_sum(noise_multiplier=20, adjacency=Adjacency.ZERO_OUT)
        >>> state.spend(noisy.times(3)).spent.total()
        3
        """
        after = self.record(*releases)
        if self.levels:
            made = tally(releases)
            # Kept, because computing them from all releases at every debit would take longer.
            after.__dict__["by_level"] = tuple(
                state.spend(*list_releases(_at_level(made, level)))
                for level, state in enumerate(self.by_level)
            )
        elif any(not release.sampled for release in releases) and not after.within_budget:
            raise BudgetExceededError(self._refusal(releases))
        return after

    def record(self, *releases: Release) -> "Filter":
        """Return the filter with these releases counted, whether or not they fit the budget."""
        spent = Counter(self.spent)
        for release in releases:
            self._check_terms(release)
            kind = release.times(1)
            spent[kind] += release.count
            if release.sampled and spent[kind] > self.frozen[kind]:
                raise BudgetExceededError(
                    f"sampled releases must be part of a frozen plan (q, σ, K): "
                    f"{self.frozen[kind] - self.spent[kind]} left at q = {kind.sampling_rate:g} "
                    f"and noise multiplier {kind.noise_multiplier:g}"
                )
        return replace(self, spent=spent)

    def freeze(self, plan: Release) -> "Filter":
        """Return the filter with a Poisson-sampled plan charged, before anything is released.

        >>> from pacdp.privacy import Adjacency
        >>> budget = Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
        >>> plan = Release.clipped_sum(
        ...     noise_multiplier=10, count=100, sampling_rate=0.1, adjacency=Adjacency.ZERO_OUT
        ... )
        >>> print(Filter(budget).freeze(plan).charged)
        ε = 0.347113 at δ = 1e-05, zero-out (pld)
        """
        self._check_terms(plan)
        if not plan.sampled:
            raise InputError("plan: only Poisson-sampled releases are frozen; spend others as made")
        if self.spent:
            raise InputError(
                "plan: sampled releases must be frozen before the first release of a budget"
            )
        after = replace(self, frozen=self.frozen + Counter({plan.times(1): plan.count}))
        if self.levels:
            for level, state in enumerate(self.by_level):
                for release in list_releases(_sampled(_at_level(tally([plan]), level))):
                    state.freeze(release)
        elif not after.within_budget:
            raise BudgetExceededError(f"the sampled plan reaches {after.charged} of {self.budget}")
        return after

    def rebudget(self, epsilon: float, *, level: int | None = None) -> "Filter":
        """Return the filter under another ε, which may not be below what is charged already.

        With a ``level``, only the ε of that level changes.

        >>> from pacdp.privacy import Adjacency
        >>> state = Filter(Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT))
        >>> noisy = Release.clipped_sum(noise_multiplier=20, adjacency=Adjacency.ZERO_OUT)
        >>> state.spend(noisy).rebudget(0.2).budget.epsilon
        0.2
        """
        epsilon = require_scalar("epsilon", require_budget("epsilon", epsilon))
        if level is None:
            after = replace(self, budget=replace(self.budget, epsilon=epsilon))
        elif level in range(len(self.levels)):
            changed = (*self.level_budgets[:level], epsilon, *self.level_budgets[level + 1 :])
            after = replace(self, level_budgets=changed)
        else:
            raise InputError(f"level {level}: unknown; there are {len(self.levels)}")
        for state in after.by_level:
            if not state.within_budget:
                raise BudgetExceededError(
                    f"budget {state.budget}: is below the spent {state.charged}"
                )
        return after

    def affordable(self, release: Release) -> int:
        """Compute how many more releases of this kind fit, ignoring ``release.count``.

        >>> from pacdp.privacy import Adjacency
        >>> state = Filter(Guarantee(epsilon=0.5, adjacency=Adjacency.ZERO_OUT))
        >>> noisy = Release.clipped_sum(noise_multiplier=20, adjacency=Adjacency.ZERO_OUT)
        >>> state.affordable(noisy)
        8
        """
        kind = release.times(1)
        self._check_terms(kind)
        if kind.sampled:
            return self.frozen[kind] - self.spent[kind]
        # A search with the filter's own test, so that the answer is exactly what it will accept.
        low, high = 0, 1
        while high <= LARGEST_COUNT // 4 and self.record(kind.times(high)).within_budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.record(kind.times(middle)).within_budget:
                low = middle
            else:
                high = middle
        return low

    @cached_property
    def least_z(self) -> float | None:
        """The least noise over sensitivity of one more release; None when nothing is left.

        >>> from pacdp.privacy import Adjacency
        >>> Filter(Guarantee(epsilon=0.1, adjacency=Adjacency.ZERO_OUT)).least_z
        30.749566...
        """
        if self.levels:
            least = [state.least_z for state in self.by_level]
            return None if None in least else max(z for z in least if z is not None)
        if not self.frozen:
            left = self.mu_limit**2 - self.mu_charged**2
            return 1 / math.sqrt(left) if left > NEGLIGIBLE * self.mu_limit**2 else None

        def cost(z: float) -> float:
            terms = self.budget
            release = Release(
                noise_multiplier=z, sensitivity=1.0, adjacency=terms.adjacency, unit=terms.unit
            )
            return self.record(release).charged.epsilon

        try:
            return smallest_noise(cost, self.budget.epsilon, guess=1 / self.mu_limit)
        except InputError:
            return None

    @cached_property
    def within_budget(self) -> bool:
        """Whether all that is charged fits the budget, at every level."""
        if self.levels:
            return all(state.within_budget for state in self.by_level)
        if not self.frozen:
            return self.mu_charged <= self.mu_limit
        return self.charged.epsilon <= self.budget.epsilon

    @cached_property
    def charged(self) -> Guarantee:
        """What counts against the budget: releases made, and frozen plans as a whole.

        With levels, this is the largest charge of any of them.
        """
        if self.levels:
            return _largest(self.by_level).charged
        gaussian = Counter({kind: n for kind, n in self.spent.items() if not kind.sampled})
        return self._price(list_releases(gaussian + self.frozen))

    @cached_property
    def realised(self) -> Guarantee:
        """What the releases made so far certify, if they had been planned in advance.

        Where noise was chosen from what earlier releases showed, the guarantee is the budget; this
        then says how much of it is used. With levels, it is the largest of any of them.
        """
        if self.levels:
            if self.frozen:
                return max((state.realised for state in self.by_level), key=attrgetter("epsilon"))
            return _largest(self.by_level).realised
        return self._price(list_releases(self.spent))

    @property
    def mu_limit(self) -> float:
        """The total μ of Gaussian releases that the budget covers."""
        return _mu_limit(self.budget.epsilon, self.budget.delta)

    @cached_property
    def mu_charged(self) -> float:
        """The total μ of the Gaussian releases made so far; with levels, the largest."""
        if self.levels:
            return max(state.mu_charged for state in self.by_level)
        return total_mu(release for release in list_releases(self.spent) if not release.sampled)

    def _price(self, releases: list[Release]) -> Guarantee:
        if not releases:
            return replace(self.budget, epsilon=0.0)
        return account(releases, delta=self.budget.delta)

    def _refusal(self, releases: Iterable[Release]) -> str:
        after = self.record(*releases).charged.epsilon
        message = f"would reach ε = {after:.6g} of the budget {self.budget}; "
        if self.frozen:
            # Computing what is left takes seconds, during which a ledger would hold its lock.
            return message + "less is left beside the frozen plans"
        message += f"spent so far: ε = {self.realised.epsilon:.6g}; left: "
        kinds = {release.times(1) for release in releases}
        if len(kinds) == 1:
            kind = kinds.pop()
            return message + (
                f"{self.affordable(kind)} releases at noise multiplier {kind.noise_multiplier:g}"
            )
        return message + (f"one release at z >= {self.least_z:.6g}" if self.least_z else "nothing")

    def _check_terms(self, release: Release) -> None:
        if release.adjacency is not self.budget.adjacency:
            raise InputError(
                f"release: is under {release.adjacency}, but the budget is under "
                f"{self.budget.adjacency}"
            )
        if release.unit != self.budget.unit:
            raise InputError(
                f"release: covers a {release.unit}, but the budget is for a {self.budget.unit}"
            )
        if release.levels and len(release.levels) != len(self.levels):
            raise InputError(
                f"release: has {len(release.levels)} budget levels, but the budget has "
                f"{len(self.levels)}"
            )


@lru_cache(maxsize=4096)
def _mu_limit(epsilon: float, delta: float) -> float:
    # Cached, because every debit makes a new filter under the same budget.
    return float(mu_for(epsilon, delta))


def _largest(states: Sequence[Filter]) -> Filter:
    """Return the filter with the largest ε; they have the same δ."""
    if any(state.frozen for state in states):
        return max(states, key=lambda state: state.charged.epsilon)
    # A larger μ is a larger ε, and need not be converted.
    return max(states, key=lambda state: state.mu_charged)


def tally(releases: Iterable[Release]) -> Tally:
    """Count releases by kind."""
    counts: Tally = Counter()
    for release in releases:
        counts[release.times(1)] += release.count
    return counts


def _at_level(counts: Tally, level: int) -> Tally:
    """Return what the releases of a tally were to the records of a level."""
    levels: Tally = Counter()
    for kind, count in counts.items():
        release = kind.at_level(level)
        if release is not None:
            levels[release] += count
    return levels


def _sampled(counts: Tally) -> Tally:
    return Counter({kind: count for kind, count in counts.items() if kind.sampled})


def list_releases(tally: Tally) -> list[Release]:
    """List the releases of a tally, each with its count."""
    return [kind.times(count) for kind, count in tally.items() if count]
