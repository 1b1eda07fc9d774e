"""The figure of the headline: all runs, with the paper's number and other references."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacdp.reporting.figures.palette import STYLES

_RUNS: dict[str, Any] = {"marker": "o", "markersize": 6, "alpha": 0.7, "linestyle": "none"}
_REFERENCES: dict[str, dict[str, Any]] = {
    "the paper": {"marker": "D", "linestyle": "none", "color": "black", "fillstyle": "none"},
    "ceiling without privacy": {"marker": "|", "linestyle": "none", "color": "0.35"},
    "before private data": {"marker": "x", "linestyle": "none", "color": "0.35"},
    "chance": {"marker": ".", "linestyle": "none", "color": "0.6"},
}


def draw_headline(bars: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the accuracies of each setting and track as one row."""
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    tracks = list(dict.fromkeys(bar["track"] for bar in bars))
    colours = {track: style.colour for track, style in zip(tracks, STYLES, strict=False)}
    for place, bar in enumerate(bars):
        runs = [100 * value for value in bar["reached"]]
        axes.plot(runs, [place] * len(runs), color=colours[bar["track"]], **_RUNS)
        for name, value in bar["references"].items():
            if value is not None:
                size = 14 if name == "ceiling without privacy" else 7
                axes.plot(100 * value, place, markersize=size, **_REFERENCES[name])
    axes.set_yticks(range(len(bars)), [f"{bar['label']}, {bar['track']}" for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy on test records, %")
    axes.grid(axis="x", alpha=0.3)
    handles = [
        Line2D([], [], label=f"PAC-DP, {track}", color=colour, **_RUNS)
        for track, colour in colours.items()
    ]
    handles += [Line2D([], [], label=name, **mark) for name, mark in _REFERENCES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
