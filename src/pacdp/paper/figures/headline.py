"""The figure of the headline: all runs, with the paper's number and other references."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacdp.reporting.figures.palette import STYLES

_MARKS: dict[str, dict[str, Any]] = {
    "PAC-DP, each run": {"marker": "o", "linestyle": "none", "markersize": 6, "alpha": 0.7},
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
        look = {**_MARKS["PAC-DP, each run"], "color": colours[bar["track"]]}
        axes.plot(runs, [place] * len(runs), **look)
        for name, key, size in (
            ("the paper", "paper", 7),
            ("ceiling without privacy", "ceiling", 14),
            ("before private data", "before", 7),
            ("chance", "chance", 7),
        ):
            if bar[key] is not None:
                axes.plot(100 * bar[key], place, markersize=size, **_MARKS[name])
    axes.set_yticks(range(len(bars)), [f"{bar['label']}, {bar['track']}" for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy on test records, %")
    axes.grid(axis="x", alpha=0.3)
    handles = [
        Line2D([], [], label=f"PAC-DP, {track}", **{**_MARKS["PAC-DP, each run"], "color": colour})
        for track, colour in colours.items()
    ]
    handles += [Line2D([], [], label=n, **m) for n, m in _MARKS.items() if n != "PAC-DP, each run"]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
