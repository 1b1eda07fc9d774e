"""What was measured of the theorems, as pictures. Legends stand outside the data."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pacdp.errors import InputError
from pacdp.paper.theory.approximation import HIGH, LOW, Pipeline, Regression
from pacdp.paper.theory.budget import RoundsAtBudget
from pacdp.paper.theory.experiments import Sweep
from pacdp.paper.theory.guess import Guess
from pacdp.paper.theory.rates import THEOREMS
from pacdp.validation import FloatArray

NAMES = {
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


def rates_figure(sweeps: Sequence[Sweep]) -> Figure:
    """The noise part of each error over each setting: a row for each theorem.

    >>> from pacdp.paper.theory.experiments import sweeps
    >>> len(rates_figure(sweeps(repeats=4, rounds=32, dimension=4)).axes)
    18
    """
    chosen = [one for one in sweeps if one.part == "noise part" and one.setting in NAMES]
    if not chosen:
        raise InputError("sweeps: hold no noise part to draw")
    rows = [name for name in THEOREMS if any(one.theorem == name for one in chosen)]
    picture = Figure(figsize=(17, 3.3 * len(rows) + 0.7), layout="constrained")
    grid = picture.subplots(len(rows), len(NAMES), squeeze=False)
    for row, theorem in enumerate(rows):
        own = {one.setting: one for one in chosen if one.theorem == theorem}
        for column, setting in enumerate(NAMES):
            _sweep(grid[row, column], own[setting])
        grid[row, 0].set_ylabel(f"{theorem}\nnoise part of {MEASURES[theorem]}")
    for axes, setting in zip(grid[-1], NAMES, strict=True):
        axes.set_xlabel(NAMES[setting])
    handles, labels = grid[0, 0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=3)
    picture.suptitle("What noise adds to the error: measured slope, and the slope stated")
    return picture


def rounds_figure(found: Sequence[RoundsAtBudget]) -> Figure:
    """The error over T at one total budget, a column for each theorem.

    >>> from pacdp.paper.theory.budget import rounds_at_budget
    >>> len(rounds_figure(rounds_at_budget(repeats=2, most=8)).axes)
    2
    """
    theorems = list(dict.fromkeys(one.theorem for one in found))
    picture = Figure(figsize=(6.5 * len(theorems), 5.6), layout="constrained")
    for axes, theorem in zip(
        picture.subplots(1, len(theorems), squeeze=False)[0], theorems, strict=True
    ):
        for number, one in enumerate(one for one in found if one.theorem == theorem):
            colour = f"C{number}"
            label = f"ε = {one.epsilon:g}"
            axes.errorbar(
                one.rounds, *_mean(one.errors), color=colour, fmt="o-", label=f"{label}, one η"
            )
            axes.plot(
                *(one.rounds, one.tuned.mean(1)),
                color=colour,
                linestyle=":",
                label=f"{label}, η tuned",
            )
            axes.axvline(
                one.predicted, color=colour, linestyle="--", label=f"{label}, best T of the bound"
            )
        _logarithmic(axes)
        axes.set_xlabel("rounds T, all within one (ε, δ)")
        axes.set_ylabel("f(w_T) − f*" if theorem == "strongly convex" else "f(w̄) − f*")
        axes.set_title(f"{theorem}, δ = {found[0].delta:g}")
        handles, labels = axes.get_legend_handles_labels()
        # A column for each budget.
        order = sorted(range(len(labels)), key=lambda n: float(labels[n].split()[2].strip(",")))
        axes.legend(
            [handles[n] for n in order],
            [labels[n] for n in order],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=3,
            fontsize="small",
        )
    return picture


def approximation_figure(regression: Regression, pipelines: Sequence[Pipeline]) -> Figure:
    """Theorem 5: least squares over n, whole pipelines over n and noise, and the utility gap.

    >>> from pacdp.paper.theory.approximation import pipelines, regression
    >>> few = pipelines(repeats=1, counts=[4, 5])
    >>> len(approximation_figure(regression(repeats=20), few).axes)
    4
    """
    picture = Figure(figsize=(17, 5.4), layout="constrained")
    one, two, three, four = picture.subplots(1, 4)
    counts = np.array(regression.counts)
    for number, sigma in enumerate(regression.sigmas):
        mean = regression.errors[number].mean(-1)
        one.plot(counts, mean, "o", color=f"C{number}", label=f"measured, σ = {sigma:g}")
        stated = sigma**2 / counts + regression.misfit
        one.plot(
            counts, stated, ":", color=f"C{number}", label="σ²/n + η²" if number == 0 else None
        )
        factor = sigma**2 * 3 / counts + regression.misfit
        one.plot(
            counts, factor, "-", color=f"C{number}", label="3σ²/n + η²" if number == 0 else None
        )
    one.set_xlabel("budgets n")
    one.set_ylabel("E|Ĉ − C*|²")
    one.set_title("Least squares alone")
    for number, way in enumerate(pipelines):
        colour = f"C{number}"
        for axes, x, errors in ((two, way.counts, way.errors), (three, way.noises, way.by_noise)):
            label = f"{way.name} ± 2 standard errors"
            axes.errorbar(x, *_mean(errors), fmt="o-", color=colour, label=label)
        four.plot(
            *(way.distances.ravel(), way.gaps.ravel()),
            ".",
            color=colour,
            markersize=2,
            alpha=0.4,
            label=way.name,
        )
    two.set_xlabel("budgets n")
    two.set_ylabel("E|Ĉ − C*|²")
    two.set_title("Scores, choice and fit, over n")
    three.set_xlabel("standard deviation of a score")
    three.set_ylabel("E|Ĉ − C*|²")
    three.set_title("The same over noise")
    every = np.concatenate([way.distances.ravel() for way in pipelines])
    line = np.geomspace(max(every.min(), 1e-4), every.max(), 50)
    steepest = max(float(np.max(way.gaps / np.maximum(way.distances, 1e-12))) for way in pipelines)
    four.plot(line, steepest * line, "k:", label="L·|Ĉ − C*|, L the least that holds here")
    four.set_xlabel("|Ĉ − C*|")
    four.set_ylabel("utility gap")
    four.set_title(f"The gap, ε from {LOW:g} to {HIGH:g}")
    for axes in (one, two, four):
        _logarithmic(axes)
    three.set_yscale("log")
    three.grid(alpha=0.3, which="both")
    four.set_xlim(line[0], line[-1] * 1.2)
    four.set_ylim(1e-8, None)
    for axes in (one, two, three, four):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=1, fontsize="small")
    return picture


def guess_figure(found: Sequence[Guess]) -> Figure:
    """The surrogate's C* against a grid's, a column for each learning rate.

    >>> from pacdp.paper.theory.guess import guesses
    >>> few = guesses(rates=[1.0], budgets=[0.1, 10], bounds=[0.1, 1, 10], seeds=2, rounds=3)
    >>> len(guess_figure(few).axes)
    1
    """
    picture = Figure(figsize=(6.5 * len(found), 5.6), layout="constrained")
    for axes, one in zip(
        picture.subplots(1, len(found), squeeze=False, sharey=True)[0], found, strict=True
    ):
        axes.fill_between(
            one.budgets, one.low, one.high, color="0.85", label="the grid cannot tell from its C*"
        )
        axes.plot(one.budgets, one.found, "ko-", label="C* of the grid")
        for guess, style, kappa in ((one.guessed, "C0s-", "1/K"), (one.paper, "C1^--", "1")):
            label = f"surrogate, κ = {kappa}: off by a factor {np.exp(one.off(guess)):.1f}"
            axes.plot(one.budgets, guess, style, label=label)
        _logarithmic(axes)
        axes.set_xlabel("budget ε")
        axes.set_ylabel("clipping bound C")
        axes.set_title(f"learning rate {one.learning_rate:g}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize="small")
    return picture


def _sweep(axes: Axes, sweep: Sweep) -> None:
    x = np.array(sweep.values)
    label = "measured ± 2 standard errors"
    axes.errorbar(x, *_mean(sweep.errors), fmt="o", color="black", label=label)
    axes.plot(x, sweep.slope.at(x), color="C0", label="fitted slope")
    # Through the middle of the fitted line: only its slope is stated.
    middle = np.exp(np.log(x).mean())
    stated: FloatArray = sweep.slope.at(middle) * (x / middle) ** sweep.stated
    axes.plot(x, stated, color="C3", linestyle="--", label="the theorem's slope")
    _logarithmic(axes)
    axes.set_title(
        f"{sweep.slope.value:.2f} ± {sweep.slope.error:.2f}, stated {sweep.stated:g}",
        fontsize="medium",
    )


def _mean(errors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Over repeats, with bars of two standard errors."""
    mean = np.nanmean(errors, 1)
    many = np.sum(~np.isnan(errors), 1)
    spread = 2 * np.nanstd(errors, 1) / np.sqrt(np.maximum(many - 1, 1))
    # A bar that reaches below zero has no place on a logarithmic axis.
    return mean, np.stack([np.minimum(spread, 0.9 * mean), spread])


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    low, high = axes.get_xlim()
    near = high / low < 100
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
