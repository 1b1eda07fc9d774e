"""Differences in accuracy with confidence intervals, relative to a line at zero."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from pacdp.paper.studies.summary import AccuracyGain
from pacdp.reporting.figures.palette import STYLES
from pacdp.stats import confidence_radius

# Panel, row, series.
Panels = Mapping[str, Mapping[str, Mapping[str, AccuracyGain]]]


def draw_gains(panels: Panels) -> Figure:
    """Draw panels below each other, each with one row per item and one marker per series."""
    rows = [max(len(panel), 1) for panel in panels.values()]
    figure = Figure(figsize=(8.5, 1.2 + 0.5 * sum(rows) + 0.7 * len(rows)), layout="constrained")
    all_axes = figure.subplots(
        len(rows), squeeze=False, sharex=True, gridspec_kw={"height_ratios": rows}
    )[:, 0]
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        axes.axvline(0, color="0.4", linewidth=1)
        for place, series in enumerate(panel.values()):
            for number, (name, gain) in enumerate(series.items()):
                style = STYLES[number]
                radius = confidence_radius(gain.standard_error, gain.seeds)
                axes.errorbar(
                    gain.points,
                    place + 0.18 * (number - (len(series) - 1) / 2),
                    xerr=radius if gain.seeds > 1 else 0.0,
                    color=style.colour,
                    marker=style.marker,
                    linestyle="none",
                    capsize=2,
                    label=name if place == 0 else None,
                )
        axes.set_yticks(range(len(panel)), list(panel))
        axes.set_ylim(len(panel) - 0.5, -0.5)
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(title, fontsize="medium", loc="left")
    all_axes[-1].set_xlabel("gain in accuracy, points (bars: 95 % by Student's t)")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
