"""The tables of a page."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pacdp.experiments import RunResult
from pacdp.experiments.levels import LevelSummary, format_spent_by_unit, summarise_spent
from pacdp.federation import ClientResult
from pacdp.formatting import (
    MISSING,
    format_bytes,
    format_duration,
    format_min_median_max,
    format_number,
    format_score,
)
from pacdp.reporting.comparison import Comparison, describe_terms, format_epsilons, format_stats
from pacdp.reporting.figures.base import Table
from pacdp.reporting.figures.clients import sort_by_budget

_Item = TypeVar("_Item")


def tabulate_methods(comparison: Comparison) -> Table:
    """Return one row for each method: its score, its budgets, and what it certifies."""
    groups, metric = comparison.groups, comparison.metric
    columns: dict[str, Callable[[str], str]] = {
        "method": lambda label: label,
        "seeds": lambda label: str(len(groups[label])),
        f"final {metric}": lambda label: format_stats(comparison.final_stats(label), metric),
        "before private data": lambda label: format_stats(comparison.initial_stats(label), metric),
        "budget ε": lambda label: format_epsilons(groups[label], "epsilon_budget"),
        "spent ε": lambda label: format_epsilons(groups[label], "epsilon_spent"),
        "total traffic": lambda label: format_bytes(
            statistics.fmean(result.total_bytes for result in groups[label])
        ),
        "time": lambda label: format_duration(
            statistics.fmean(result.seconds for result in groups[label])
        ),
    }
    if not any(comparison.initial_stats(label) for label in groups):
        del columns["before private data"]
    caption = (
        f"Mean ± standard deviation over seeds. ε at {comparison.terms}, over clients and seeds: "
        "single values, or minimum / median / maximum where many differ. Traffic: up and down, "
        "all clients and rounds of one run; as planned in a simulation, measured in a federation."
    )
    return _tabulate(columns, groups, caption)


def tabulate_clients(result: RunResult) -> Table:
    """Return one row for each client of a run."""
    columns: dict[str, Callable[[ClientResult], str]] = {
        "client": lambda client: client.name,
        "records": lambda client: str(client.records),
        "budget ε": lambda client: format_number(client.epsilon_budget),
        "planned ε": lambda client: format_number(client.epsilon_planned, 6),
        "spent ε": lambda client: format_number(client.epsilon_spent, 6),
        "remaining ε": lambda client: format_number(client.epsilon_left),
        "releases made / planned": _format_releases,
        "σ/C": lambda client: format_number(client.noise_multiplier),
        "signal to noise": lambda client: format_number(client.signal_to_noise),
        "refused": lambda client: str(client.refused),
        "failed": lambda client: str(client.failed),
        "accuracy": lambda client: format_score(client.accuracy, "accuracy"),
    }
    terms = describe_terms(result.plan)
    caption = f"Seed {result.seed}. ε at {terms}; remaining is budget minus spent."
    return _tabulate(columns, sort_by_budget(result), caption)


def tabulate_levels(result: RunResult) -> Table | None:
    """Return one row for each budget level of a run's records; None without levels."""
    levels, unit = summarise_spent(result), result.plan.unit
    if not levels:
        return None
    columns: dict[str, Callable[[LevelSummary], str]] = {
        "level ε": lambda level: f"{level.epsilon:g}",
        f"{unit}s": lambda level: f"{level.units:,}",
        "budget ε": lambda level: format_min_median_max(level.budgets),
        "spent ε": lambda level: format_min_median_max(level.costs),
        "clipping bound C_j/C": lambda level: format_min_median_max(level.ratios),
        "sampling rate": lambda level: format_min_median_max(level.sampling_rates),
    }
    accuracies = result.accuracy_by_level
    if accuracies:
        columns["accuracy"] = lambda level: format_score(accuracies.get(level.epsilon), "accuracy")
    if all(rate == 1 for level in levels for rate in level.sampling_rates):
        del columns["sampling rate"]
    caption = (
        f"Seed {result.seed}. ε at {describe_terms(result.plan)}. Level: the ε declared for a "
        f"{unit}; budget: the same, capped by its client's. Spent ε over {unit}s: "
        f"{format_spent_by_unit(result)}."
    )
    return _tabulate(columns, levels, caption)


def _tabulate(
    columns: Mapping[str, Callable[[_Item], str]], items: Iterable[_Item], caption: str
) -> Table:
    rows = [tuple(format_cell(item) for format_cell in columns.values()) for item in items]
    return Table(tuple(columns), rows, caption)


def _format_releases(client: ClientResult) -> str:
    if client.epsilon_spent is None:
        return MISSING
    return f"{client.releases} / {client.releases_planned}"
