"""How clipping and noise follow from the budget: the curve F, and C and σ by round."""

import statistics
from collections.abc import Mapping

import numpy as np

from pacdp.curve import Curve, CurveEvidence
from pacdp.federation import Plan
from pacdp.formatting import format_count, format_number, format_score, format_terms
from pacdp.reporting.comparison import Comparison
from pacdp.reporting.figures.base import Chart, ChartBuilder, Point, Table
from pacdp.reporting.figures.curve import draw_curve
from pacdp.reporting.figures.palette import series_style

# More levels cannot be told apart.
MOST_LEVELS = 6


def plot_clipping_and_noise(comparison: Comparison, label: str) -> Chart | None:
    """Plot C and σ of each budget level by round; None for a method that does not clip."""
    plan, terms = comparison.groups[label][0].plan, comparison.terms
    levels = _select_levels(plan)
    if not plan.algorithm.private or not levels:
        return None
    adapted = {
        number: statistics.fmean(bounds)
        for number, bounds in comparison.adapted_bounds(label).items()
    }
    builder = ChartBuilder(columns=2, height=3.4)
    left, right = builder.axes
    rows = []
    for position, level in enumerate(levels):
        multipliers = [c.noise_multiplier or 0.0 for c in plan.clients if c.epsilon == level]
        name = f"ε = {level:g} ({format_count(len(multipliers), 'client')})"
        multiplier = statistics.median(multipliers)
        bounds = adapted or _planned_bounds(plan, level)
        noise = {t: multiplier * bound for t, bound in bounds.items()}
        for axes, values, symbol in ((left, bounds, "C"), (right, noise, "σ")):
            text = f"ε = {level:g} ({plan.privacy.adjacency}), round {{}}: {symbol} = {{:.3g}}"
            points = [Point(t, value, text.format(t, value)) for t, value in values.items()]
            style = series_style(position)
            builder.add_points(axes, points, style, label=name, joined=True, size=3.6)
        rows += [
            (f"ε = {level:g}, round {t}", format_number(bounds[t]), format_number(noise[t]))
            for t in bounds
        ]
    for axes in builder.axes:
        builder.use_log_scale(axes, y=True)
        builder.use_integer_ticks(axes)
    builder.label_axes(left, "round", "clipping bound C (gradient norm)")
    builder.label_axes(right, "round", "noise σ (per coordinate of a sum)")
    return builder.build(
        "Clipping bound and noise by round",
        "Left: the clipping bound C. Right: the noise σ = (σ/C)·C of a clipped sum. Both by the ε "
        f"that noise is calibrated to ({terms}). {_explain_bounds(plan, bool(adapted))}",
        Table(("level and round", "C", "σ"), rows, f"ε at {terms}"),
    )


def _select_levels(plan: Plan) -> list[float]:
    """Return the ε that noise is calibrated to; of many, some evenly, with both ends."""
    levels = sorted({client.epsilon for client in plan.clients})
    if len(levels) <= MOST_LEVELS:
        return levels
    return [levels[round(n)] for n in np.linspace(0, len(levels) - 1, MOST_LEVELS)]


def _planned_bounds(plan: Plan, level: float) -> Mapping[float, float]:
    bound = plan.algorithm.bound
    return {t + 1: bound(level, round=t, rounds=plan.rounds) for t in range(plan.rounds)}


def _explain_bounds(plan: Plan, adapted: bool) -> str:
    text = "C depends only on the budget and the round, so choosing it costs no privacy."
    if adapted:
        text = (
            "C follows noised counts from round to round; shown is the mean over seeds, and the "
            "median over clients where each has its own."
        )
    if plan.privacy.spending.policy != "even":
        text += " σ is that of even spending; this plan varies it from round to round."
    return text


def plot_curve(curve: Curve, *, terms: str) -> Chart:
    """Plot F(ε), with the score matrix P where the curve holds its grid.

    >>> curve = Curve(family="power", coefficients=(0.5, 0.25))
    >>> plot_curve(curve, terms="δ = 1e-05, zero-out").table.rows[0]
    ('0.01', '0.158')
    """
    if curve.evidence.choices:
        return _plot_grid(curve, curve.evidence)
    builder = ChartBuilder(height=3.2)
    axes = builder.axes[0]
    bounds = {float(e): curve(float(e)) for e in np.geomspace(*curve.domain, 25)}
    points = [Point(e, c, f"ε = {e:.3g} ({terms}): C = {c:.3g}") for e, c in bounds.items()]
    builder.add_points(axes, points, series_style(0), joined=True, size=3.4)
    builder.use_log_scale(axes, x=True, y=True)
    builder.label_axes(axes, f"budget ε ({terms})", "clipping bound C = F(ε) (gradient norm)")
    rows = [(f"{e:.3g}", format_number(c)) for e, c in bounds.items()]
    coefficients = ", ".join(f"{value:g}" for value in curve.coefficients)
    return builder.build(
        "The curve F(ε)",
        f"The clipping bound for each budget: {curve.family} [{coefficients}]. ε at {terms}.",
        Table(("budget ε", "F(ε)"), rows, f"ε at {terms}"),
    )


def _plot_grid(curve: Curve, evidence: CurveEvidence) -> Chart:
    """Return the figure of ``pacdp curve plot`` as a chart, with ε under the curve's own terms."""
    terms = format_terms(evidence.plan["delta"], evidence.plan["adjacency"])
    figure = draw_curve(curve)
    for axes in figure.axes:
        if "ε" in axes.get_xlabel():
            axes.set_xlabel(f"budget ε ({terms})")
    metric = evidence.metric
    rows = []
    for epsilon, choice in zip(evidence.budgets, evidence.choices, strict=True):
        expected = format_score(curve.expected_score(epsilon), metric)
        bounds = format_number(choice.bound), format_number(curve(epsilon))
        rows.append((f"{epsilon:.4g}", *bounds, expected))
    return Chart(
        figure,
        "The score matrix P and the curve F(ε)",
        "Left: the score of each budget and clipping bound on public proxy records. Right: the "
        f"curves fitted to the selected bounds C*; {curve.family} is used. ε at {terms}.",
        Table(("budget ε", "C*", "F(ε)", f"expected {metric} on the proxy"), rows, f"ε at {terms}"),
    )


def find_curve(comparison: Comparison) -> Curve | None:
    """Return the curve of the first method that uses one."""
    for results in comparison.groups.values():
        if settings := results[0].plan.settings.get("curve"):
            return Curve.model_validate(settings)
    return None
