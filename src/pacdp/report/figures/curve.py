"""The score matrix P and the curves fitted to it."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from pacdp.curve.curve import Curve
from pacdp.curve.paper import PAPER
from pacdp.errors import InputError
from pacdp.validation import FloatArray

LEGEND: dict[str, Any] = {
    **{"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)},
    **{"fontsize": "small", "frameon": False},
}


def draw_curve(curve: Curve) -> Figure:
    """Draw the scores by budget and clipping bound with C* (left), and all fitted families (right).

    >>> draw_curve(Curve(family="power", coefficients=(0.5, 0.25)))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: curve: holds no grid to draw; pacdp fit makes one that does
    """
    if "scores" not in curve.evidence:
        raise InputError("curve: holds no grid to draw; pacdp fit makes one that does")
    picture = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    _draw_matrix(left, curve)
    _draw_families(right, curve)
    proxy = curve.evidence["proxy"]
    privacy = curve.evidence["plan"]
    picture.suptitle(
        f"{proxy['name']} for {proxy['stands_for']}: {len(curve.evidence['seeds'])} seeds, "
        f"δ = {privacy['delta']:g}, {privacy['adjacency']}"
    )
    return picture


def _draw_matrix(axes: Axes, curve: Curve) -> None:
    evidence = curve.evidence
    budgets, bounds = np.array(evidence["budgets"]), np.array(evidence["bounds"])
    mean = np.array(evidence["scores"]).mean(0)
    percent = 100 if evidence["metric"] == "accuracy" else 1
    mesh = axes.pcolormesh(
        *(_cell_edges(budgets), _cell_edges(bounds), percent * mean.T),
        cmap="viridis",
        shading="flat",
    )
    unit = "held-out accuracy in %" if percent == 100 else "negative held-out loss"
    axes.figure.colorbar(mesh, ax=axes, label=unit)
    _draw_selected(axes, curve, colour="white")
    fine = np.geomspace(budgets[0], budgets[-1], 200)
    axes.plot(fine, [curve(e) for e in fine], color="red", label=f"F, {curve.family}")
    _set_scales(axes, bounds)
    axes.set_title("Score matrix P")
    axes.legend(ncols=2, **LEGEND)


def _draw_families(axes: Axes, curve: Curve) -> None:
    evidence = curve.evidence
    budgets = np.array(evidence["budgets"])
    fine = np.geomspace(budgets[0], budgets[-1], 200)
    for family, fit in evidence["families"].items():
        if fit["coefficients"] is None:
            continue
        fitted = Curve(family=family, coefficients=tuple(fit["coefficients"]), domain=curve.domain)
        left_out = "-" if fit["left_out"] is None else f"{fit['left_out']:.2f}"
        chosen = family == curve.family
        axes.plot(
            fine,
            [fitted(e) for e in fine],
            linewidth=2.2 if chosen else 1.1,
            linestyle="-" if chosen else "--",
            label=f"{family}{' (chosen)' if chosen else ''}: R² {fit['r_squared']:.3f}, "
            f"left-out error of ln C {left_out}",
        )
    known = PAPER.get(evidence["proxy"]["stands_for"])
    if known is not None:
        (a, b, c), r_squared = known
        values = a * fine**2 + b * fine + c
        shown = values > 0
        axes.plot(
            *(fine[shown], values[shown]),
            color="black",
            linestyle=":",
            label=f"published, R² {r_squared:.3f}" + ("" if shown.all() else ", where positive"),
        )
    _draw_selected(axes, curve, colour="black")
    _set_scales(axes, np.array(evidence["bounds"]))
    axes.set_title("Fitted families")
    axes.grid(alpha=0.3, which="both")
    axes.legend(**LEGEND)


def _draw_selected(axes: Axes, curve: Curve, *, colour: str) -> None:
    """Draw the selected bound C* of each budget with its standard error."""
    choices = curve.evidence["choices"]
    bounds = np.array([choice["bound"] for choice in choices])
    factor = np.exp([choice["spread"] for choice in choices])
    axes.errorbar(
        curve.evidence["budgets"],
        bounds,
        yerr=[bounds - bounds / factor, bounds * factor - bounds],
        color=colour,
        fmt="o",
        markeredgecolor="black",
        markersize=5,
        capsize=3,
        label="C* ± its standard error",
    )


def _set_scales(axes: Axes, bounds: FloatArray) -> None:
    axes.set(xscale="log", yscale="log", xlabel="budget ε", ylabel="clipping bound C")
    axes.set_ylim(bounds[0] / 1.3, bounds[-1] * 1.3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _cell_edges(values: FloatArray) -> FloatArray:
    """Return the edges of cells whose geometric centres are these values."""
    middle = np.sqrt(values[1:] * values[:-1])
    return np.array([values[0] ** 2 / middle[0], *middle, values[-1] ** 2 / middle[-1]])
