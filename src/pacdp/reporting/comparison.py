"""Comparison of results of one experiment, grouped by method with one result per seed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pacdp.errors import InputError
from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.federation import Plan
from pacdp.formatting import (
    MISSING,
    format_mean_deviation,
    format_min_median_max,
    format_score,
    format_terms,
)
from pacdp.reporting.figures.palette import SeriesStyle, series_style
from pacdp.stats import SampleStats


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results by label; those under one label differ only in their seed.

    All must be results of the same experiment, so that metrics, ε and clients are comparable.

    >>> Comparison({})
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: comparison: has no results, must have at least one
    """

    groups: Mapping[str, Sequence[RunResult]]

    def __post_init__(self) -> None:
        if not self.groups:
            raise InputError("comparison: has no results, must have at least one")
        for label, results in self.groups.items():
            if not results:
                raise InputError(f"{label}: has no results, must have one for each seed")
            for result in results:
                setting, first = _describe_setting(result.plan), _describe_setting(self.plan)
                if setting != first:
                    raise InputError(
                        f"{label}: is of another experiment ({setting}), must be that of the "
                        f"first ({first})"
                    )

    @classmethod
    def of(cls, results: Iterable[RunResult]) -> "Comparison":
        """Group results by method and settings, in the order of their seeds.

        Where a method occurs with several settings, those that differ are part of its label. A
        run that is given twice is refused, since it would count as another seed.
        """
        groups: dict[frozenset[tuple[str, str]], list[RunResult]] = {}
        runs: set[str] = set()
        for result in results:
            if result.plan.run in runs:
                raise InputError(f"run {result.plan.run}: is given twice, must be given once")
            runs.add(result.plan.run)
            groups.setdefault(frozenset(_flat_settings(result.plan)), []).append(result)
        settings = [dict(key) for key in groups]
        labels = [_make_label(mine, settings) for mine in settings]
        ordered = (sorted(group, key=lambda result: result.seed) for group in groups.values())
        return cls(dict(zip(labels, ordered, strict=True)))

    @property
    def plan(self) -> Plan:
        """The plan of the first result, whose public settings all results share."""
        return next(iter(self.groups.values()))[0].plan

    @property
    def metric(self) -> str:
        """The headline metric of the task."""
        return self.plan.task.metric

    @property
    def baseline(self) -> float | None:
        """The headline metric of the best constant prediction; None if the task has none."""
        return next(iter(self.groups.values()))[0].chance

    @property
    def terms(self) -> str:
        """The δ, adjacency and unit that must accompany every ε."""
        return describe_terms(self.plan)

    @cached_property
    def styles(self) -> dict[str, SeriesStyle]:
        """The colour, dash and marker of each label, by its position."""
        return {label: series_style(n) for n, label in enumerate(self.groups)}

    def metric_by_round(self, label: str) -> dict[float, SampleStats]:
        """Summarise the headline metric over seeds, for each evaluated round."""
        return {
            number: SampleStats.of(values)
            for number, values in collect_values(
                (row.round, row.metrics.get(self.metric))
                for result in self.groups[label]
                for row in result.history
            ).items()
        }

    def final_metrics(self, label: str) -> dict[int, float]:
        """Return the final headline metric by seed; diverged runs have no loss and are left out."""
        return {
            result.seed: result.metrics[self.metric]
            for result in self.groups[label]
            if self.metric in result.metrics
        }

    def final_stats(self, label: str) -> SampleStats | None:
        """Summarise the final headline metric over seeds; None if all runs diverged."""
        values = self.final_metrics(label).values()
        return SampleStats.of(values) if values else None

    def initial_stats(self, label: str) -> SampleStats | None:
        """Summarise the headline metric after public pre-training; None without pre-training."""
        before = [result.before_private_data or {} for result in self.groups[label]]
        values = [metrics[self.metric] for metrics in before if self.metric in metrics]
        return SampleStats.of(values) if values else None

    def accuracy_by_budget(self, label: str) -> dict[float, list[float]]:
        """Return the accuracies over seeds for the holders of each budget; empty without ε."""
        return collect_values(
            item for result in self.groups[label] for item in result.accuracy_by_budget.items()
        )

    def adapted_bounds(self, label: str) -> dict[float, list[float]]:
        """Return the clipping bounds over seeds by round, where a method adapts them."""
        return collect_values(
            (row.round, row.clipping_bound)
            for result in self.groups[label]
            for row in result.history
        )


def collect_values(items: Iterable[tuple[float, float | None]]) -> dict[float, list[float]]:
    """Collect values by key, in the order of the keys; None is no value."""
    values: dict[float, list[float]] = {}
    for key, value in items:
        if value is not None:
            values.setdefault(key, []).append(value)
    return dict(sorted(values.items()))


def describe_terms(plan: Plan) -> str:
    """Return the δ, the adjacency and the unit, which must accompany every ε of a plan."""
    return format_terms(plan.privacy.delta, plan.privacy.adjacency, plan.unit)


def format_stats(stats: SampleStats | None, metric: str) -> str:
    """Format mean ± standard deviation; a single seed has no deviation.

    >>> format_stats(SampleStats.of([0.5, 0.7]), "accuracy"), format_stats(None, "accuracy")
    ('60.0 ± 14.1 %', '–')
    """
    if stats is None:
        return MISSING
    if stats.count == 1:
        return format_score(stats.mean, metric)
    return format_mean_deviation(stats.mean, stats.deviation, metric)


def format_epsilons(results: Iterable[RunResult], field: str) -> str:
    """Format one kind of ε over all clients of all results."""
    return format_min_median_max(collect_epsilons(results, field))


def _describe_setting(plan: Plan) -> str:
    """Describe what must be equal for numbers to be compared."""
    return (
        f"{plan.data}, {plan.task}, {len(plan.clients)} clients, "
        f"δ = {plan.privacy.delta:g}, {plan.privacy.adjacency} of a {plan.unit}"
    )


def _flat_settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield everything that distinguishes two plans, apart from the seed, under flat names."""
    content = plan.model_dump(mode="json", exclude={"seed", "clients", "again"})
    curve = content["settings"].get("curve")
    if isinstance(curve, dict):
        content["settings"] = {**content["settings"], "curve": {**curve, "evidence": None}}
    return _flatten("", content)


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return
    for key, inner in value.items():
        # A method's own settings are clear without a prefix.
        yield from _flatten(key if name in ("", "settings") else f"{name}.{key}", inner)


def _make_label(mine: Mapping[str, str], settings: Sequence[Mapping[str, str]]) -> str:
    """Return the method's name, with the settings in which it differs from other groups of it."""
    same = [other for other in settings if other["method"] == mine["method"]]
    names = sorted({name for other in same for name in other})
    differing = [name for name in names if len({other.get(name) for other in same}) > 1]
    parts = [f"{name} = {mine[name]}" for name in differing if name in mine]
    return f"{mine['method']} ({'; '.join(parts)})" if parts else mine["method"]
