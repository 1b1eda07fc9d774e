"""Figure of a fitted curve: the score matrix P, the selected bounds and the fitted families."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from pacdp.curve import Curve, CurveEvidence
from pacdp.curve.paper import PUBLISHED_CURVES
from pacdp.validation import FloatArray


def draw_curve(curve: Curve) -> Figure:
    """Draw the scores over budget and bound with C* (left), and all families through C* (right).

    >>> draw_curve(Curve(family="power", coefficients=(0.5, 0.25)))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: curve: holds no grid of scores; pacdp fit makes one that does
    """
    evidence = curve.require_evidence()
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    epsilons = np.geomspace(evidence.budgets[0], evidence.budgets[-1], 200)
    _draw_matrix(left, evidence)
    _draw_choices(left, evidence, colour="white")
    values = [curve(epsilon) for epsilon in epsilons]
    left.plot(epsilons, values, color="red", label=f"F, {curve.family}")
    _draw_families(right, curve, evidence, epsilons)
    _draw_choices(right, evidence, colour="black")
    right.grid(alpha=0.3, which="both")
    for axes, title, columns in ((left, "The matrix P", 2), (right, "The families", 1)):
        _format_axes(axes, evidence)
        axes.set_title(title)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns, fontsize="small"
        )
    proxy, plan = evidence.proxy, evidence.plan
    figure.suptitle(
        f"{proxy.name} for {proxy.stands_for}: {len(evidence.seeds)} seeds, "
        f"δ = {plan['delta']:g}, {plan['adjacency']}"
    )
    return figure


def _draw_matrix(axes: Axes, evidence: CurveEvidence) -> None:
    mean = np.mean(evidence.scores, axis=0).T
    edges = _cell_edges(evidence.budgets), _cell_edges(evidence.bounds)
    accuracy = evidence.metric == "accuracy"
    mesh = axes.pcolormesh(*edges, 100 * mean if accuracy else mean, cmap="viridis", shading="flat")
    label = "held-out accuracy in %" if accuracy else f"{evidence.metric} on held-out records"
    axes.figure.colorbar(mesh, ax=axes, label=label)


def _draw_families(axes: Axes, curve: Curve, evidence: CurveEvidence, epsilons: FloatArray) -> None:
    for family, fit in evidence.families.items():
        if fit.coefficients is None:
            continue
        fitted = Curve.model_validate(
            {"family": family, "coefficients": fit.coefficients, "domain": curve.domain}
        )
        left_out = "-" if fit.left_out is None else f"{fit.left_out:.2f}"
        selected = family == curve.family
        axes.plot(
            epsilons,
            [fitted(epsilon) for epsilon in epsilons],
            linewidth=2.2 if selected else 1.1,
            linestyle="-" if selected else "--",
            label=f"{family}{' (chosen)' if selected else ''}: R² {fit.r_squared:.3f}, "
            f"left-out error of ln C {left_out}",
        )
    published = PUBLISHED_CURVES.get(evidence.proxy.stands_for)
    if published is not None:
        (a, b, c), r_squared = published
        values = a * epsilons**2 + b * epsilons + c
        positive = values > 0
        label = f"the paper's, R² {r_squared:.3f}{'' if positive.all() else ', where positive'}"
        axes.plot(epsilons[positive], values[positive], color="black", linestyle=":", label=label)


def _draw_choices(axes: Axes, evidence: CurveEvidence, *, colour: str) -> None:
    """Draw C* of each budget with its standard error."""
    bounds = np.array([choice.bound for choice in evidence.choices])
    factor = np.exp([choice.spread for choice in evidence.choices])
    axes.errorbar(
        evidence.budgets,
        bounds,
        yerr=[bounds - bounds / factor, bounds * factor - bounds],
        color=colour,
        fmt="o",
        markeredgecolor="black",
        markersize=5,
        capsize=3,
        label="C* ± its standard error",
    )


def _format_axes(axes: Axes, evidence: CurveEvidence) -> None:
    axes.set(xscale="log", yscale="log", xlabel="budget ε", ylabel="clipping bound C")
    axes.set_ylim(evidence.bounds[0] / 1.3, evidence.bounds[-1] * 1.3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _cell_edges(centres: tuple[float, ...]) -> FloatArray:
    """Return the edges of cells that have these values at their geometric centres."""
    values = np.array(centres)
    inner = np.sqrt(values[1:] * values[:-1])
    return np.array([values[0] ** 2 / inner[0], *inner, values[-1] ** 2 / inner[-1]])
