"""Budget levels over all clients, where single records (or units) have budgets of their own."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pacdp.experiments.results import RunResult
from pacdp.federation import Plan


class LevelSummary(NamedTuple):
    """One budget level, over the clients that have records (or units) of it."""

    epsilon: float
    """The declared ε."""
    units: int
    budgets: list[float]
    """The declared ε, capped by each client's budget."""
    costs: list[float]
    """Each client's planned or spent ε for a record of this level."""
    ratios: list[float]
    """Each client's clipping bound over that of its largest level."""
    sampling_rates: list[float]


class _ClientLevel(NamedTuple):
    """One level of one client."""

    epsilon: float
    units: int
    budget: float
    cost: float
    ratio: float
    sampling_rate: float


def summarise_planned(plan: Plan) -> list[LevelSummary]:
    """Summarise what each level costs after the whole training; empty without levels.

    >>> from pacdp.experiments import prepare_run, read_experiment
    >>> experiment = read_experiment("heart-records")
    >>> plan = prepare_run(experiment, method=experiment.build_method("fixed")).plan
    >>> [(one.epsilon, one.units, round(one.ratios[0], 3)) for one in summarise_planned(plan)]
    [(0.1, 343, 0.029), (1.0, 98, 0.239), (5.0, 49, 1.0)]
    """
    clients = []
    for number, client in enumerate(plan.clients):
        costs = plan.level_costs(number)
        clients.append(
            [
                _ClientLevel(
                    level.epsilon,
                    level.units,
                    level.budget,
                    costs[index],
                    *client.level_terms[index],
                )
                for index, level in enumerate(client.levels)
            ]
        )
    return _summarise(clients)


def summarise_spent(result: RunResult) -> list[LevelSummary]:
    """Summarise what a run spent at each level; empty without levels."""
    return _summarise(
        [
            _ClientLevel(
                epsilon=level.epsilon,
                units=level.units,
                budget=level.epsilon_budget,
                cost=level.epsilon_spent,
                ratio=level.ratio,
                sampling_rate=level.sampling_rate,
            )
            for level in client.levels
        ]
        for client in result.clients
    )


def _summarise(clients: Iterable[Sequence[_ClientLevel]]) -> list[LevelSummary]:
    summaries = []
    for column in zip(*clients, strict=True):
        held = [level for level in column if level.units]
        summaries.append(
            LevelSummary(
                epsilon=column[0].epsilon,
                units=sum(level.units for level in held),
                budgets=[level.budget for level in held],
                costs=[level.cost for level in held],
                ratios=[level.ratio for level in held],
                sampling_rates=[level.sampling_rate for level in held],
            )
        )
    return summaries


def format_spent_by_unit(result: RunResult) -> str:
    """Format minimum, median and maximum of the ε that was spent of each record (or unit)."""
    spent = [epsilon for client in result.clients for epsilon in client.spent_by_unit()]
    summary = (min(spent), statistics.median_low(spent), max(spent))
    return " / ".join(f"{epsilon:.4g}" for epsilon in summary) + " (minimum / median / maximum)"
