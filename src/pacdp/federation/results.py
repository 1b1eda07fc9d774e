"""Typed results of a simulated federation: of each round, of each client, and of the whole."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import ConfigDict, Field

from pacdp.config import Real, Settings
from pacdp.federation.local_model import Tensors
from pacdp.federation.plan import Plan
from pacdp.methods import ClientPlan
from pacdp.privacy import Ledger, total_mu
from pacdp.privacy.filter import list_releases


class RoundResult(Settings):
    """The participation, the privacy cost and, where it was evaluated, the score of one round.

    The JSON form is flat: metrics stand beside the other keys, and ``clipping_bound`` is left out
    where the method does not adapt one.

    >>> row = {"round": 1, "asked": 4, "answered": 3, "epsilon_spent": 0.5,
    ...     "adjacency": "zero-out", "seconds": 0.1, "accuracy": 0.75}
    >>> RoundResult.from_json(row).metrics
    {'accuracy': 0.75}
    >>> RoundResult.from_json(row).to_json() == row
    True
    """

    round: int
    asked: int
    """How many clients the plan asks in each round."""
    answered: int
    epsilon_spent: Real | None
    """The largest ε that any client has been charged so far."""
    adjacency: str
    seconds: Real
    """Since the run began."""
    clipping_bound: Real | None = None
    """The clipping bound of this round, where it follows noised statistics."""
    metrics: Mapping[str, Real] = {}
    """Scores on the test records; empty for rounds without an evaluation."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of ``metrics.jsonl``."""
        content = self.model_dump(exclude={"metrics"})
        if self.clipping_bound is None:
            del content["clipping_bound"]
        return content | dict(self.metrics)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        fields = {key: value for key, value in content.items() if key in cls.model_fields}
        metrics = {key: value for key, value in content.items() if key not in cls.model_fields}
        return cls.model_validate({**fields, "metrics": metrics})


class LevelResult(Settings):
    """One budget level of a client's records: what was promised, and what was spent."""

    epsilon: float
    """The declared ε."""
    epsilon_budget: float
    """The declared ε, capped by the client's budget."""
    epsilon_spent: float
    """Certified for the releases that this run made, for a record of this level."""
    units: int
    """How many records (or units) have this level."""
    ratio: float
    """C_j/C, the clipping bound over the largest; 0 where the method leaves the records out."""
    sampling_rate: float = 1.0


class ClientResult(Settings):
    """One client's guarantee, planned and spent, and what it sees of the final model.

    A client without a guarantee has no ε: its values are None.
    """

    # Files of a later version may say more about a client.
    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    name: str = Field(alias="id")
    records: int
    unit: str
    epsilon_budget: float | None
    epsilon_planned: float | None
    epsilon_spent: float | None = Field(alias="epsilon_realised")
    """Certified for the releases that this run made."""
    epsilon_ledger: float | None
    """Certified for everything in the client's ledger, which may hold other runs too."""
    delta: float
    adjacency: str
    label: str
    """Why the budget is not the guarantee of the whole run; empty where it is."""
    releases: int
    releases_planned: int
    noise_multiplier: float | tuple[float, ...] | None
    """σ / C as planned; several where a method makes several kinds of release."""
    noise_multiplier_range: tuple[float, float] | None
    """The smallest and the largest σ / C of the releases that were made."""
    mu_spent: float | None = Field(alias="mu_realised")
    sampling_rate: float
    refused: int
    failed: int
    accuracy: float | None
    signal_to_noise: float | None
    levels: tuple[LevelResult, ...] = Field((), exclude_if=lambda levels: not levels)
    """The budget levels of the client's records; empty where all have the client's budget."""

    def spent_by_unit(self) -> list[float]:
        """List the ε spent of each record (or unit), in ascending order."""
        return sorted(level.epsilon_spent for level in self.levels for _ in range(level.units))

    @property
    def epsilon_left(self) -> float | None:
        """Budget minus spent ε; None without a guarantee for the whole run.

        A remainder that is only rounding counts as zero.
        """
        if self.epsilon_budget is None or self.epsilon_spent is None or self.label:
            return None
        left = self.epsilon_budget - self.epsilon_spent
        return 0.0 if abs(left) < 1e-6 * self.epsilon_budget else left


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """The result of a simulated federation."""

    plan: Plan
    model: Tensors
    history: Sequence[RoundResult]
    metrics: Mapping[str, float]
    """Scores of the final model on the test records."""
    chance: float | None
    """The headline metric of the best constant prediction, such as the most frequent class."""
    accuracies: Sequence[float | None]
    """The accuracy that each client sees."""
    ledgers: Sequence[Ledger | None]
    seconds: float
    accuracy_by_level: Mapping[float, float] = field(default_factory=dict)
    """The accuracy on test records of each budget level, where they have budgets of their own."""
    refused: Counter[int] = field(default_factory=Counter)
    """How often each client refused because its plan or its budget was used up."""
    failed: Counter[int] = field(default_factory=Counter)

    @property
    def parameters(self) -> int:
        """The number of parameters of the model."""
        return sum(value.numel() for value in self.model.values())

    def clients(self) -> list[ClientResult]:
        """Collect each client's guarantee, planned and spent, and its accuracy."""
        return [self._client(number) for number in range(len(self.plan.clients))]

    def _client(self, number: int) -> ClientResult:
        plan, client, ledger = self.plan, self.plan.clients[number], self.ledgers[number]
        # A durable ledger may hold the releases of other runs as well.
        releases = [] if ledger is None else list_releases(ledger.count_releases(plan.run))
        planned, spent = plan.planned_guarantee(number), plan.certify(releases)
        noise = [release.noise_multiplier for release in releases]
        noise_planned = tuple(charge.noise_multiplier for charge in client.charges)
        sampled = [rate for charge in client.charges for rate in charge.sampling_rates if rate < 1]
        return ClientResult(
            name=client.name,
            records=client.records,
            unit=plan.unit,
            epsilon_budget=client.budget,
            epsilon_planned=None if planned is None else planned.epsilon,
            epsilon_spent=None if spent is None else spent.epsilon,
            epsilon_ledger=None if ledger is None else ledger.filter.realised.epsilon,
            delta=plan.privacy.delta,
            adjacency=plan.privacy.adjacency,
            label=plan.label,
            releases=sum(release.count for release in releases),
            releases_planned=client.releases,
            noise_multiplier=noise_planned if len(noise_planned) > 1 else client.noise_multiplier,
            noise_multiplier_range=(min(noise), max(noise)) if noise else None,
            mu_spent=None if spent is None or sampled else total_mu(releases),
            sampling_rate=min(sampled, default=1.0),
            refused=self.refused[number],
            failed=self.failed[number],
            accuracy=self.accuracies[number],
            signal_to_noise=signal_to_noise(client, self.parameters),
            levels=tuple(self._level(number, level) for level in range(len(client.levels))),
        )

    def _level(self, client: int, number: int) -> LevelResult:
        plan, ledger = self.plan, self.ledgers[client]
        level, terms = plan.clients[client].levels[number], plan.clients[client].level_terms[number]
        releases = [] if ledger is None else list_releases(ledger.count_releases(plan.run))
        at_level = [release.at_level(number) for release in releases]
        spent = plan.certify([release for release in at_level if release is not None])
        return LevelResult(
            epsilon=level.epsilon,
            epsilon_budget=level.budget,
            epsilon_spent=0.0 if spent is None else spent.epsilon,
            units=level.units,
            ratio=terms.ratio,
            sampling_rate=terms.sampling_rate,
        )


def signal_to_noise(client: ClientPlan, parameters: int) -> float | None:
    """Return the norm of the largest possible release over the norm of its noise.

    The signal is at most C, reached when all gradients point in one direction; the noise has the
    norm σ·√d over the divisor. So the best case is divisor / (σ/C·√d).
    """
    if client.noise_multiplier is None:
        return None
    return client.divisor / (client.noise_multiplier * math.sqrt(parameters))
