"""Scores of methods: by round, at the end, and by budget."""

from collections.abc import Mapping, Sequence

from pacdp.formatting import counted, score
from pacdp.report.comparison import Comparison, format_stats
from pacdp.report.figures.base import (
    REFERENCE_LINE,
    Chart,
    ChartBuilder,
    Table,
    Tooltip,
    escape_mathtext,
    shorten,
    thin,
)
from pacdp.report.figures.palette import SeriesStyle, series_style
from pacdp.stats import SampleStats


def plot_scores_by_round(comparison: Comparison) -> Chart:
    """Plot the mean score over seeds by round, in a band of one standard deviation."""
    metric, chance, styles = comparison.metric, comparison.chance, comparison.styles
    builder, factor = ChartBuilder(height=4.2), _factor(metric)
    axes = builder.axes[0]
    series = {label: comparison.scores_by_round(label) for label in comparison.groups}
    for label, stats in series.items():
        rounds, style = list(stats), styles[label]
        mean = [factor * point.mean for point in stats.values()]
        deviation = [factor * point.deviation for point in stats.values()]
        builder.add_line(axes, rounds, mean, style)
        if any(deviation):
            axes.fill_between(
                rounds,
                [m - d for m, d in zip(mean, deviation, strict=True)],
                [m + d for m, d in zip(mean, deviation, strict=True)],
                color=style.colour,
                # Many overlapping bands would hide the lines.
                alpha=0.1 if len(series) <= 4 else 0.045,
                linewidth=0,
            )
        marked = thin(rounds)
        tooltips = [Tooltip(f"{label}, round {n}: {_describe(stats[n], metric)}") for n in marked]
        builder.add_points(axes, marked, [factor * stats[n].mean for n in marked], tooltips, style)
    if chance is not None:
        axes.axhline(factor * chance, **REFERENCE_LINE)
    builder.use_integer_ticks(axes)
    builder.label_axes(axes, "round", _axis_label(metric))
    builder.add_legend(styles, chance=chance)
    every = sorted({n for stats in series.values() for n in stats})
    rows = [
        (str(n), *(format_stats(stats.get(n), metric) for stats in series.values())) for n in every
    ]
    seeds = max(len(results) for results in comparison.groups.values())
    shown = (
        "for one seed" if seeds == 1 else f"mean ± one standard deviation (band) over {seeds} seeds"
    )
    return builder.build(
        f"{metric.capitalize()} by round",
        f"Test {metric} of the global model after each round, {shown}.{_explain_chance(chance)}",
        Table(("round", *series), rows, f"Test {metric}, mean ± standard deviation over seeds"),
    )


def plot_final_scores(comparison: Comparison) -> Chart:
    """Plot the final score of each method: mean, standard deviation and every seed."""
    metric, chance, labels = comparison.metric, comparison.chance, list(comparison.groups)
    factor, rows = _factor(metric), []
    builder = ChartBuilder(height=1.1 + 0.34 * len(labels))
    axes = builder.axes[0]
    for place, label in enumerate(labels):
        scores, stats = comparison.final_scores(label), comparison.final_stats(label)
        each = ", ".join(score(value, metric) for value in scores.values())
        rows.append((label, format_stats(stats, metric), each or format_stats(None, metric)))
        if stats is None:
            continue
        style, mean = comparison.styles[label], factor * stats.mean
        deviation = factor * stats.deviation
        axes.errorbar(mean, place, xerr=deviation, color=style.colour, linewidth=2.6, alpha=0.45)
        if stats.count > 1:
            tooltips = [
                Tooltip(f"{label}, seed {seed}: {score(value, metric)}")
                for seed, value in scores.items()
            ]
            x, y = [factor * value for value in scores.values()], [place - 0.24] * len(scores)
            builder.add_points(axes, x, y, tooltips, style, size=3.2, marker="o", alpha=0.7)
        summary = Tooltip(f"{label}: {_describe(stats, metric)}")
        builder.add_points(axes, [mean], [place], [summary], style, size=7)
    axes.set_yticks(range(len(labels)), [escape_mathtext(shorten(label, 44)) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    if chance is not None:
        axes.axvline(factor * chance, **REFERENCE_LINE)
        builder.add_legend({}, chance=chance)
    builder.label_axes(axes, _axis_label(metric), "")
    return builder.build(
        f"Final {metric} by method",
        f"Large markers show the mean over seeds, bars ± one standard deviation, and small markers "
        f"single seeds.{_explain_chance(chance)}",
        Table(("method", f"final {metric}", "single seeds"), rows),
    )


def plot_by_epsilon(
    series: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    terms: str,
    chance: float | None = None,
    metric: str = "accuracy",
    styles: Mapping[str, SeriesStyle] | None = None,
    title: str = "",
) -> Chart:
    """Plot scores against ε: for each series and each ε one value per seed.

    ``terms`` names the δ and the adjacency of every ε.

    >>> chart = plot_by_epsilon(
    ...     {"fixed": {0.1: [0.5, 0.6], 1.0: [0.8]}}, terms="δ = 1e-05, zero-out"
    ... )
    >>> chart.table.rows
    [('0.1', '55.0 ± 7.1 %'), ('1', '80.0 %')]
    """
    builder, factor = ChartBuilder(), _factor(metric)
    axes = builder.axes[0]
    styles = styles or {name: series_style(n) for n, name in enumerate(series)}
    summaries = {
        name: {epsilon: SampleStats.of(values[epsilon]) for epsilon in sorted(values)}
        for name, values in series.items()
    }
    for place, (name, stats) in enumerate(summaries.items()):
        # A small shift keeps error bars at the same ε apart.
        shift = 1.035 ** (place - (len(series) - 1) / 2)
        x = [epsilon * shift for epsilon in stats]
        y = [factor * point.mean for point in stats.values()]
        builder.add_line(axes, x, y, styles[name])
        axes.errorbar(
            *(x, y),
            yerr=[factor * point.deviation for point in stats.values()],
            fmt="none",
            ecolor=styles[name].colour,
            alpha=0.45,
            linewidth=1.6,
        )
        tooltips = [
            Tooltip(f"{name}, ε = {epsilon:g} ({terms}): {_describe(point, metric)}")
            for epsilon, point in stats.items()
        ]
        builder.add_points(axes, x, y, tooltips, styles[name], size=5)
    builder.use_log_scale(axes, x=True)
    every = sorted({epsilon for values in series.values() for epsilon in values})
    builder.set_ticks(axes.xaxis, every)
    if chance is not None:
        axes.axhline(factor * chance, **REFERENCE_LINE)
    builder.label_axes(axes, f"budget ε ({terms})", _axis_label(metric))
    builder.add_legend({name: styles[name] for name in series}, chance=chance)
    rows = [
        (
            f"{epsilon:g}",
            *(format_stats(stats.get(epsilon), metric) for stats in summaries.values()),
        )
        for epsilon in every
    ]
    return builder.build(
        title or f"{metric.capitalize()} by ε",
        f"Mean ± one standard deviation over seeds.{_explain_chance(chance)} ε at {terms}.",
        Table(("budget ε", *series), rows, f"{metric.capitalize()} by budget ε at {terms}"),
    )


def plot_accuracy_by_budget(comparison: Comparison) -> Chart | None:
    """Plot the accuracy for the clients that hold each budget: who pays for privacy.

    Returns None where there are no two budgets to compare. Chance is not drawn, since it differs
    between the budgets' holders.
    """
    series = {label: comparison.accuracy_by_budget(label) for label in comparison.groups}
    series = {label: levels for label, levels in series.items() if levels}
    if max((len(levels) for levels in series.values()), default=0) < 2:
        return None
    return plot_by_epsilon(
        series,
        terms=comparison.terms,
        styles=comparison.styles,
        title="Accuracy by budget",
    )


def _factor(metric: str) -> float:
    return 100 if metric == "accuracy" else 1


def _axis_label(metric: str) -> str:
    return "test accuracy in %" if metric == "accuracy" else f"test {metric}"


def _describe(stats: SampleStats, metric: str) -> str:
    seeds = f" over {counted(stats.count, 'seed')}" if stats.count > 1 else ""
    return format_stats(stats, metric) + seeds


def _explain_chance(chance: float | None) -> str:
    if chance is None:
        return ""
    return " Chance is the accuracy of always predicting the most frequent class."
