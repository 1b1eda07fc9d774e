"""The matrix P and the curves through it, as a picture."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from pacdp.curve.curve import Curve
from pacdp.curve.paper import PAPER
from pacdp.errors import InputError


def figure(curve: Curve) -> Figure:
    """Left the scores over budget and bound with C*, right the families through C*.

    >>> figure(Curve(family="power", coefficients=(0.5, 0.25)))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: curve: holds no grid to draw; pacdp fit makes one that does
    """
    if "scores" not in curve.evidence:
        raise InputError("curve: holds no grid to draw; pacdp fit makes one that does")
    picture = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    _matrix(left, curve)
    _families(right, curve)
    proxy = curve.evidence["proxy"]
    privacy = curve.evidence["plan"]
    picture.suptitle(
        f"{proxy['name']} for {proxy['stands_for']}: {len(curve.evidence['seeds'])} seeds, "
        f"δ = {privacy['delta']:g}, {privacy['adjacency']}"
    )
    return picture


def _matrix(axes: Axes, curve: Curve) -> None:
    evidence = curve.evidence
    budgets, bounds = np.array(evidence["budgets"]), np.array(evidence["bounds"])
    mean = np.array(evidence["scores"]).mean(0)
    metric = evidence["metric"]
    percent = 100 if metric == "accuracy" else 1
    mesh = axes.pcolormesh(
        *(_edges(budgets), _edges(bounds), percent * mean.T), cmap="viridis", shading="flat"
    )
    unit = "held-out accuracy in %" if percent == 100 else f"{metric} on held-out records"
    axes.figure.colorbar(mesh, ax=axes, label=unit)
    _chosen(axes, curve, colour="white")
    fine = np.geomspace(budgets[0], budgets[-1], 200)
    axes.plot(fine, [curve(e) for e in fine], color="red", label=f"F, {curve.family}")
    _scales(axes, bounds)
    axes.set_title("The matrix P")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize="small")


def _families(axes: Axes, curve: Curve) -> None:
    evidence = curve.evidence
    budgets = np.array(evidence["budgets"])
    fine = np.geomspace(budgets[0], budgets[-1], 200)
    for family, found in evidence["families"].items():
        if found["coefficients"] is None:
            continue
        made = Curve(family=family, coefficients=tuple(found["coefficients"]), domain=curve.domain)
        left_out = "-" if found["left_out"] is None else f"{found['left_out']:.2f}"
        chosen = family == curve.family
        axes.plot(
            fine,
            [made(e) for e in fine],
            linewidth=2.2 if chosen else 1.1,
            linestyle="-" if chosen else "--",
            label=f"{family}{' (chosen)' if chosen else ''}: R² {found['r_squared']:.3f}, "
            f"left-out error of ln C {left_out}",
        )
    known = PAPER.get(evidence["proxy"]["stands_for"])
    if known is not None:
        (a, b, c), r_squared = known
        values = a * fine**2 + b * fine + c
        there = values > 0
        axes.plot(
            *(fine[there], values[there]),
            color="black",
            linestyle=":",
            label=f"the paper's, R² {r_squared:.3f}" + ("" if there.all() else ", where positive"),
        )
    _chosen(axes, curve, colour="black")
    _scales(axes, np.array(evidence["bounds"]))
    axes.set_title("The families")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=1, fontsize="small")


def _chosen(axes: Axes, curve: Curve, *, colour: str) -> None:
    """C* of each budget with its standard error."""
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


def _scales(axes: Axes, bounds: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bounds[0] / 1.3, bounds[-1] * 1.3)
    axes.set_xlabel("budget ε")
    axes.set_ylabel("clipping bound C")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _edges(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Edges of cells that have these values in their (geometric) middle."""
    middle = np.sqrt(values[1:] * values[:-1])
    return np.array([values[0] ** 2 / middle[0], *middle, values[-1] ** 2 / middle[-1]])
