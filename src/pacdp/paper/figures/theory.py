"""Figures of the theory's measurements, with legends outside the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pacdp.errors import InputError
from pacdp.paper.theory import approximation
from pacdp.paper.theory.approximation import Pipeline, Regression
from pacdp.paper.theory.budget import DELTA, RoundsAtBudget
from pacdp.paper.theory.rates import THEOREMS
from pacdp.paper.theory.surrogate_check import SurrogateCheck
from pacdp.paper.theory.sweeps import Sweep
from pacdp.validation import FloatArray

SETTINGS = {
    "z": "noise multiplier z",
    "C": "clipping bound C",
    "B": "batch B",
    "M": "clients M",
    "T": "rounds T",
    "d": "dimension d",
}
MEASURES = {
    "non-convex": "mean ‖∇f‖²",
    "convex": "f(w̄) − f*",
    "strongly convex": "f(w̄) − f*",
}


def draw_sweeps(sweeps: Sequence[Sweep]) -> Figure:
    """Draw the noise part of each error over each setting, with one row per theorem.

    >>> from pacdp.paper.theory.sweeps import measure_sweeps
    >>> len(draw_sweeps(measure_sweeps(repeats=4, rounds=32, dimension=4)).axes)
    18
    """
    drawn = {(s.theorem, s.setting): s for s in sweeps if s.part == "noise part"}
    rows = [name for name in THEOREMS if (name, "z") in drawn]
    if not rows:
        raise InputError("sweeps: hold no noise part to draw")
    figure = Figure(figsize=(17, 3.3 * len(rows) + 0.7), layout="constrained")
    grid = figure.subplots(len(rows), len(SETTINGS), squeeze=False)
    for row, theorem in zip(grid, rows, strict=True):
        for axes, setting in zip(row, SETTINGS, strict=True):
            _draw_sweep(axes, drawn[theorem, setting])
        row[0].set_ylabel(f"{theorem}\nnoise part of {MEASURES[theorem]}")
    for axes, name in zip(grid[-1], SETTINGS.values(), strict=True):
        axes.set_xlabel(name)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.suptitle("What noise adds to the error: measured slope, and the slope stated")
    return figure


def draw_rounds(results: Sequence[RoundsAtBudget]) -> Figure:
    """Draw the error over T at one total budget, with one column per theorem.

    >>> from pacdp.paper.theory.budget import measure_rounds_at_budget
    >>> len(draw_rounds(measure_rounds_at_budget(repeats=2, most=8)).axes)
    2
    """
    theorems = list(dict.fromkeys(result.theorem for result in results))
    figure, columns = _make_columns(len(theorems))
    for axes, theorem in zip(columns, theorems, strict=True):
        handles: list[Any] = []
        for number, result in enumerate(r for r in results if r.theorem == theorem):
            rounds, colour, budget = result.rounds, f"C{number}", f"ε = {result.epsilon:g}"
            mean, bars = _mean_with_bars(result.errors)
            label = f"{budget}, one η"
            fixed = axes.errorbar(rounds, mean, bars, color=colour, fmt="o-", label=label)
            label = f"{budget}, η tuned"
            tuned = axes.plot(rounds, result.tuned.mean(1), ":", color=colour, label=label)
            label = f"{budget}, best T of the bound"
            best = axes.axvline(result.predicted, color=colour, linestyle="--", label=label)
            # The legend has one column per budget.
            handles += [*tuned, best, fixed]
        _set_logarithmic(axes)
        axes.set(
            xlabel="rounds T, all within one (ε, δ)",
            ylabel="f(w_T) − f*" if theorem == "strongly convex" else "f(w̄) − f*",
            title=f"{theorem}, δ = {DELTA:g}",
        )
        _add_legend(axes, below=0.14, ncols=3, handles=handles)
    return figure


def draw_approximation(regression: Regression, pipelines: Sequence[Pipeline]) -> Figure:
    """Draw Theorem 5: least squares over n, pipelines over n and over noise, the utility gap.

    >>> from pacdp.paper.theory.approximation import measure_pipelines, measure_regression
    >>> pipelines = measure_pipelines(repeats=1, counts=[4, 5])
    >>> len(draw_approximation(measure_regression(repeats=20), pipelines).axes)
    4
    """
    figure = Figure(figsize=(17, 5.4), layout="constrained")
    least_squares, by_count, by_noise, gap = figure.subplots(1, 4)
    counts = np.array(approximation.COUNTS)
    for number, sigma in enumerate(approximation.SIGMAS):
        mean, colour = regression.errors[number].mean(-1), f"C{number}"
        least_squares.plot(counts, mean, "o", color=colour, label=f"measured, σ = {sigma:g}")
        for factor, style, label in ((1, ":", "σ²/n + η²"), (3, "-", "3σ²/n + η²")):
            error = sigma**2 * factor / counts + regression.misfit
            shown = label if number == 0 else None
            least_squares.plot(counts, error, style, color=colour, label=shown)
    for number, pipeline in enumerate(pipelines):
        for axes, x, errors in (
            (by_count, pipeline.counts, pipeline.errors),
            (by_noise, approximation.SCORE_NOISES, pipeline.errors_by_noise),
        ):
            label = f"{pipeline.name} ± 2 standard errors"
            axes.errorbar(x, *_mean_with_bars(errors), fmt="o-", color=f"C{number}", label=label)
        dots: dict[str, Any] = {"color": f"C{number}", "markersize": 2, "alpha": 0.4}
        distances, gaps = pipeline.distances.ravel(), pipeline.gaps.ravel()
        gap.plot(distances, gaps, ".", label=pipeline.name, **dots)
    distances = np.concatenate([pipeline.distances.ravel() for pipeline in pipelines])
    gaps = np.concatenate([pipeline.gaps.ravel() for pipeline in pipelines])
    line = np.geomspace(max(distances.min(), 1e-4), distances.max(), 50)
    steepest = float(np.max(gaps / np.maximum(distances, 1e-12)))
    gap.plot(line, steepest * line, "k:", label="L·|Ĉ − C*|, L the least that holds here")
    low, high = approximation.LOW, approximation.HIGH
    for axes, xlabel, ylabel, title in (
        (least_squares, "budgets n", "E|Ĉ − C*|²", "Least squares alone"),
        (by_count, "budgets n", "E|Ĉ − C*|²", "Scores, choice and fit, over n"),
        (by_noise, "standard deviation of a score", "E|Ĉ − C*|²", "The same over noise"),
        (gap, "|Ĉ − C*|", "utility gap", f"The gap, ε from {low:g} to {high:g}"),
    ):
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if axes is by_noise:
            axes.set_yscale("log")
            axes.grid(alpha=0.3, which="both")
        else:
            _set_logarithmic(axes)
        _add_legend(axes, below=0.13, ncols=1)
    gap.set_xlim(line[0], line[-1] * 1.2)
    gap.set_ylim(1e-8, None)
    return figure


def draw_surrogate(checks: Sequence[SurrogateCheck]) -> Figure:
    """Draw the surrogate's C* against a grid's, with one column per learning rate.

    >>> from pacdp.paper.theory.surrogate_check import check_surrogate
    >>> checks = check_surrogate(
    ...     rates=[1.0], budgets=[0.1, 10], bounds=[0.1, 1, 10], seeds=2, rounds=3
    ... )
    >>> len(draw_surrogate(checks).axes)
    1
    """
    figure, columns = _make_columns(len(checks), sharey=True)
    for axes, check in zip(columns, checks, strict=True):
        budgets, label = check.matrix.budgets, "the grid cannot tell from its C*"
        low, high = np.array([(choice.low, choice.high) for choice in check.choices]).T
        axes.fill_between(budgets, low, high, color="0.85", label=label)
        axes.plot(budgets, check.selected, "ko-", label="C* of the grid")
        styles = ("C0s-", "C1^--")
        for style, (kappa, predicted) in zip(styles, check.predicted.items(), strict=True):
            factor = check.error_factor(predicted)
            label = f"surrogate, κ = {kappa}: off by a factor {factor:.1f}"
            axes.plot(budgets, predicted, style, label=label)
        _set_logarithmic(axes)
        axes.set(
            xlabel="budget ε",
            ylabel="clipping bound C",
            title=f"learning rate {check.learning_rate:g}",
        )
        _add_legend(axes, below=0.14, ncols=2)
    return figure


def _draw_sweep(axes: Axes, sweep: Sweep) -> None:
    x, slope = np.array(sweep.values), sweep.slope
    label = "measured ± 2 standard errors"
    axes.errorbar(x, *_mean_with_bars(sweep.errors), fmt="o", color="black", label=label)
    axes.plot(x, slope.predict(x), color="C0", label="fitted slope")
    # Through the middle of the fitted line, as the theorem states only a slope.
    middle = np.exp(np.log(x).mean())
    stated: FloatArray = slope.predict(middle) * (x / middle) ** sweep.stated
    axes.plot(x, stated, color="C3", linestyle="--", label="the theorem's slope")
    _set_logarithmic(axes)
    title = f"{slope.value:.2f} ± {slope.error:.2f}, stated {sweep.stated:g}"
    axes.set_title(title, fontsize="medium")


def _make_columns(count: int, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(6.5 * count, 5.6), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def _add_legend(axes: Axes, *, below: float, **options: Any) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -below), fontsize="small", **options)


def _mean_with_bars(errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean over repeats, and error bars of two standard errors."""
    mean = np.nanmean(errors, 1)
    repeats = np.sum(~np.isnan(errors), 1)
    spread = 2 * np.nanstd(errors, 1) / np.sqrt(np.maximum(repeats - 1, 1))
    # A logarithmic axis cannot show a bar that reaches below zero.
    return mean, np.stack([np.minimum(spread, 0.9 * mean), spread])


def _set_logarithmic(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.3, which="both")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
