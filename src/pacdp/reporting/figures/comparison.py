"""Scores of methods: by round, at the end, and by budget."""

from collections.abc import Mapping, Sequence

from pacdp.formatting import MISSING, format_count, format_score
from pacdp.reporting.comparison import Comparison, format_stats
from pacdp.reporting.figures.base import Chart, ChartBuilder, Point, Table, display_factor, shorten
from pacdp.reporting.figures.palette import SeriesStyle, series_style
from pacdp.stats import SampleStats


def plot_metric_by_round(comparison: Comparison) -> Chart:
    """Plot the headline metric by round: mean over seeds, in a band of one standard deviation."""
    metric, factor = comparison.metric, display_factor(comparison.metric)
    builder = ChartBuilder(height=4.2)
    axes = builder.axes[0]
    series = {label: comparison.metric_by_round(label) for label in comparison.groups}
    for label, by_round in series.items():
        style = comparison.styles[label]
        points = [
            _make_point(number, f"{label}, round {number}", stats, metric)
            for number, stats in by_round.items()
        ]
        builder.add_points(axes, points, style, label=label, joined=True)
        axes.fill_between(
            list(by_round),
            [factor * (stats.mean - stats.deviation) for stats in by_round.values()],
            [factor * (stats.mean + stats.deviation) for stats in by_round.values()],
            color=style.colour,
            # Many overlapping bands would hide the lines.
            alpha=0.1 if len(series) <= 4 else 0.045,
            linewidth=0,
        )
    builder.add_baseline(axes, comparison.baseline, metric)
    builder.use_integer_ticks(axes)
    builder.label_axes(axes, "round", _axis_label(metric))
    seeds = max(len(results) for results in comparison.groups.values())
    shown = "for one seed" if seeds == 1 else f"mean ± one standard deviation over {seeds} seeds"
    return builder.build(
        f"{metric.capitalize()} by round",
        f"Test {metric} of the global model after each round, {shown}."
        f"{_explain_baseline(comparison.baseline, metric)}",
        _tabulate("round", series, metric, f"Test {metric}, mean ± standard deviation over seeds"),
    )


def plot_final_metrics(comparison: Comparison) -> Chart:
    """Plot the final headline metric of each method: mean, standard deviation and every seed."""
    metric, labels = comparison.metric, list(comparison.groups)
    factor, rows = display_factor(metric), []
    builder = ChartBuilder(height=1.1 + 0.34 * len(labels))
    axes = builder.axes[0]
    for row, label in enumerate(labels):
        values, stats = comparison.final_metrics(label), comparison.final_stats(label)
        each = ", ".join(format_score(value, metric) for value in values.values())
        rows.append((label, format_stats(stats, metric), each or MISSING))
        if stats is None:
            continue
        style, mean = comparison.styles[label], factor * stats.mean
        deviation = factor * stats.deviation
        axes.errorbar(mean, row, xerr=deviation, color=style.colour, linewidth=2.6, alpha=0.45)
        if stats.count > 1:
            points = []
            for seed, value in values.items():
                text = f"{label}, seed {seed}: {format_score(value, metric)}"
                points.append(Point(factor * value, row - 0.24, text))
            builder.add_points(axes, points, style, size=3.2, marker="o", alpha=0.7)
        point = Point(mean, row, f"{label}: {_describe(stats, metric)}")
        builder.add_points(axes, [point], style, size=7)
    axes.set_yticks(range(len(labels)), [shorten(label, 44) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    builder.add_baseline(axes, comparison.baseline, metric, vertical=True)
    builder.label_axes(axes, _axis_label(metric), "")
    return builder.build(
        f"Final {metric} by method",
        "Large markers show the mean over seeds, bars ± one standard deviation, and small markers "
        f"single seeds.{_explain_baseline(comparison.baseline, metric)}",
        Table(("method", f"final {metric}", "single seeds"), rows),
    )


def plot_by_epsilon(
    scores: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    terms: str,
    baseline: float | None = None,
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
    builder, factor = ChartBuilder(), display_factor(metric)
    axes = builder.axes[0]
    styles = styles or {label: series_style(n) for n, label in enumerate(scores)}
    series = {
        label: {epsilon: SampleStats.of(values[epsilon]) for epsilon in sorted(values)}
        for label, values in scores.items()
    }
    for index, (label, by_epsilon) in enumerate(series.items()):
        # A small shift keeps error bars at the same ε apart.
        shift = 1.035 ** (index - (len(series) - 1) / 2)
        points = [
            _make_point(epsilon * shift, f"{label}, ε = {epsilon:g} ({terms})", stats, metric)
            for epsilon, stats in by_epsilon.items()
        ]
        axes.errorbar(
            [point.x for point in points],
            [point.y for point in points],
            yerr=[factor * stats.deviation for stats in by_epsilon.values()],
            fmt="none",
            ecolor=styles[label].colour,
            alpha=0.45,
            linewidth=1.6,
        )
        builder.add_points(axes, points, styles[label], label=label, joined=True, size=5)
    builder.use_log_scale(axes, x=True)
    builder.set_ticks(axes.xaxis, sorted(set().union(*scores.values())))
    builder.add_baseline(axes, baseline, metric)
    builder.label_axes(axes, f"budget ε ({terms})", _axis_label(metric))
    return builder.build(
        title or f"{metric.capitalize()} by ε",
        "Mean ± one standard deviation over seeds."
        f"{_explain_baseline(baseline, metric)} ε at {terms}.",
        _tabulate("budget ε", series, metric, f"{metric.capitalize()} by budget ε at {terms}"),
    )


def plot_accuracy_by_budget(comparison: Comparison) -> Chart | None:
    """Plot the accuracy of the clients with each budget, or return None for a single budget.

    The baseline is not drawn, because it differs between the groups of clients.
    """
    scores = {label: comparison.accuracy_by_budget(label) for label in comparison.groups}
    scores = {label: levels for label, levels in scores.items() if levels}
    if max((len(levels) for levels in scores.values()), default=0) < 2:
        return None
    title, styles = "Accuracy by budget", comparison.styles
    return plot_by_epsilon(scores, terms=comparison.terms, styles=styles, title=title)


def _tabulate(
    heading: str, series: Mapping[str, Mapping[float, SampleStats]], metric: str, caption: str
) -> Table:
    """Return one column for each series and one row for each x value that any of them has."""
    positions = sorted({x for stats in series.values() for x in stats})
    rows = [
        (f"{x:g}", *(format_stats(stats.get(x), metric) for stats in series.values()))
        for x in positions
    ]
    return Table((heading, *series), rows, caption)


def _make_point(x: float, name: str, stats: SampleStats, metric: str) -> Point:
    y = display_factor(metric) * stats.mean
    return Point(x, y, f"{name}: {_describe(stats, metric)}")


def _axis_label(metric: str) -> str:
    return "test accuracy in %" if metric == "accuracy" else f"test {metric}"


def _describe(stats: SampleStats, metric: str) -> str:
    seeds = f" over {format_count(stats.count, 'seed')}" if stats.count > 1 else ""
    return format_stats(stats, metric) + seeds


def _explain_baseline(baseline: float | None, metric: str) -> str:
    return "" if baseline is None else f" Chance is the {metric} of the best constant prediction."
