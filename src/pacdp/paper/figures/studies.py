"""Figures of the studies: accuracy by round and by budget, and the curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pacdp.curve import Curve
from pacdp.curve.paper import PUBLISHED_CURVES
from pacdp.paper.studies.study import READINGS, Reading, Study, label_arm
from pacdp.paper.studies.summary import ArmResult, StudyResult
from pacdp.reporting.figures.palette import SeriesStyle, series_style
from pacdp.validation import FloatArray

Styles = Mapping[str, SeriesStyle]
# More lines than this in one panel cannot be told apart.
MAX_LINES = 6


def group_arms(study: Study) -> list[list[str]]:
    """Group the arms into panels: clipping thresholds, and baselines with the first of ours.

    >>> from pacdp.paper.studies.study import read_study
    >>> [len(panel) for panel in group_arms(read_study("heart", profile="smoke"))]
    [6, 6]
    """
    if len(study.arms) <= MAX_LINES:
        return [list(study.arms)]
    ours = [arm for arm in study.arms if study.arm(arm).method == "pac-dp"]
    fixed = [arm for arm in study.arms if study.arm(arm).method == "fixed"]
    others = [arm for arm in study.arms if arm not in (*ours, *fixed)]
    return [ours + fixed, ours[:1] + others]


def draw_comparison(result: StudyResult) -> Figure:
    """Draw the accuracy by round under both readings, and by budget if there is a sweep."""
    drawn = group_arms(result.study)
    kinds: list[Reading | None] = [
        reading for reading in READINGS if any(row.reading == reading for row in result.rows)
    ]
    if result.sweep:
        kinds.append(None)
    picture = Figure(figsize=(4.6 * len(kinds), 4.6 * len(drawn)), layout="constrained")
    # A common scale makes readings comparable.
    grid = picture.subplots(len(drawn), len(kinds), squeeze=False, sharey=True)
    styles = {arm: series_style(position) for position, arm in enumerate(result.study.arms)}
    for line, arms in zip(grid, drawn, strict=True):
        for axes, kind in zip(line, kinds, strict=True):
            if kind is None:
                _by_budget(axes, result, arms, styles)
            else:
                _by_round(axes, result, arms, kind, styles)
            axes.axhline(100 * result.chance, color="black", linestyle=":", label="chance")
            axes.grid(alpha=0.3)
        handles = {h.get_label(): h for axes in line for h in axes.get_legend_handles_labels()[0]}
        line[-1].legend(
            handles.values(), handles, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False
        )
    data = "" if result.profile != "smoke" else f" (smoke: {result.data})"
    picture.suptitle(f"{result.study.title}{data}")
    return picture


def _by_round(
    axes: Axes, result: StudyResult, arms: Sequence[str], reading: Reading, styles: Styles
) -> None:
    for arm in arms:
        row = result.row(arm, reading)
        if row is not None:
            by_round = [row.over_rounds(run) for run in row.runs]
            values = 100 * np.array([list(scores.values()) for scores in by_round])
            _line(axes, styles[arm], label_arm(arm), list(by_round[0]), values)
        shown = reading == "as-published" and result.profile != "smoke"
        if shown and (reported := _reported(result, arm, row)):
            axes.plot(
                *(list(reported), [100 * value for value in reported.values()], "*"),
                color=styles[arm].colour,
                markersize=9,
                label=f"{label_arm(arm)}, the paper",
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    spread = " (mean ± s.d.)" if result.study.seeds > 1 else ""
    axes.set(xlabel="round", ylabel=f"test accuracy in %{spread}")
    axes.set_title(reading, fontsize="medium")


def _reported(result: StudyResult, arm: str, row: ArmResult | None) -> Mapping[int, float]:
    """Return the paper's numbers by round; its final number is placed at our last round."""
    paper = result.study.paper
    if arm in paper.rounds or arm not in paper.final or row is None:
        return paper.rounds.get(arm, {})
    return {row.runs[0].plan.rounds: paper.final[arm]}


def _by_budget(axes: Axes, result: StudyResult, arms: Sequence[str], styles: Styles) -> None:
    for arm in arms:
        rows = [row for row in result.sweep if row.arm == arm]
        values = 100 * np.array([row.accuracies for row in rows]).T
        _line(axes, styles[arm], label_arm(arm), [row.epsilon or 0.0 for row in rows], values)
    first = result.rows[0].runs[0].plan.privacy
    axes.set_xscale("log")
    axes.set_xlabel(f"ε of the whole run (δ = {first.delta:g}, {first.adjacency})")
    axes.set_title("certified, by budget", fontsize="medium")


def _line(
    axes: Axes, style: SeriesStyle, name: str, places: Sequence[float], values: np.ndarray
) -> None:
    """Draw mean and standard deviation over seeds; ``values`` has the shape (seeds, places)."""
    spread = values.std(0, ddof=1) if len(values) > 1 else None
    # A few markers distinguish the lines; more would make large files.
    options = {"label": name, "markersize": 3.5, "markevery": max(1, len(places) // 8)}
    draw_band(axes, style, places, values.mean(0), spread, alpha=0.08, **options)


def draw_band(
    axes: Axes,
    style: SeriesStyle,
    x: Sequence[float],
    mean: FloatArray,
    deviation: FloatArray | None,
    *,
    alpha: float,
    **options: Any,
) -> None:
    """Draw means as a line, in a band of one standard deviation if there is one."""
    axes.plot(x, mean, color=style.colour, linestyle=style.dash, marker=style.marker, **options)
    if deviation is not None:
        low, high = mean - deviation, mean + deviation
        axes.fill_between(x, low, high, color=style.colour, alpha=alpha, lw=0)


def draw_curves(curves: Mapping[str, Curve], *, data: Mapping[str, str]) -> Figure:
    """Draw C* of each budget and the fitted F, with the paper's F if it gives one."""
    picture = Figure(figsize=(4.4 * len(curves), 4.2), layout="constrained")
    grid = picture.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, curve) in zip(grid, curves.items(), strict=True):
        evidence = curve.evidence
        choices = evidence.choices
        fine = np.geomspace(*curve.domain, 200)
        middle = np.array([choice.bound for choice in choices])
        ends = np.array([[choice.low, choice.high] for choice in choices]).T
        axes.errorbar(
            *(evidence.budgets, middle, abs(ends - middle)),
            fmt="o",
            capsize=3,
            label="C*, with bounds that are as good",
        )
        axes.plot(fine, [curve(value) for value in fine], label=f"F, {curve.family}")
        if name in PUBLISHED_CURVES:
            known = np.polyval(PUBLISHED_CURVES[name][0], fine)
            axes.plot(
                fine[known > 0], known[known > 0], "--", label="the paper's F, where positive"
            )
        plan = evidence.plan
        axes.set(xscale="log", yscale="log", title=data[name], ylabel="clipping bound C")
        axes.set_xlabel(f"ε (δ = {plan['delta']:g}, {plan['adjacency']})")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    return picture
