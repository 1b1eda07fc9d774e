"""Charts with everything a page needs: tooltips, a caption, and a table of the values shown."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from pacdp.formatting import format_score
from pacdp.reporting.figures.palette import SeriesStyle

# In inches; a page shows them about as wide as a column of text.
WIDTH, HEIGHT = 7.6, 3.7
FONT = 8.5
MOST_TICKS = 10
# More points on a line are too close to each other to be hovered over.
MOST_POINTS = 40


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. The first column names the row."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""


class Point(NamedTuple):
    """A point of a chart, with the text that is shown for it."""

    x: float
    y: float
    tooltip: str
    client: str = ""
    """The client that it belongs to, if any."""


@dataclass(frozen=True, eq=False)
class Chart:
    """A matplotlib figure with a text alternative."""

    figure: Figure
    title: str
    caption: str
    table: Table
    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """The points with tooltips, by the gid of the group they are drawn in."""


class ChartBuilder:
    """Draws a chart in the style of the report; legend and tooltips follow what is drawn.

    >>> from pacdp.reporting.figures.palette import series_style
    >>> builder = ChartBuilder()
    >>> points = [Point(1, 3, "three"), Point(2, 4, "four")]
    >>> builder.add_points(builder.axes[0], points, series_style(0))
    >>> [point.tooltip for point in builder.points["points-0"]]
    ['three', 'four']
    """

    def __init__(self, *, columns: int = 1, height: float = HEIGHT) -> None:
        self.figure = Figure(figsize=(WIDTH, height), layout="constrained")
        self.axes: list[Axes] = list(self.figure.subplots(1, columns, squeeze=False)[0])
        self.points: dict[str, Sequence[Point]] = {}
        self._legend: dict[str, Line2D] = {}
        for axes in self.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["bottom", "left"]].set_alpha(0.45)
            axes.tick_params(labelsize=FONT, color=(0, 0, 0, 0.45))
            axes.grid(color="black", alpha=0.1, linewidth=0.7)
            axes.set_axisbelow(True)

    def add_points(
        self,
        axes: Axes,
        points: Sequence[Point],
        style: SeriesStyle,
        *,
        label: str = "",
        joined: bool = False,
        size: float = 4.5,
        hollow: bool = False,
        marker: str | None = None,
        alpha: float = 1.0,
    ) -> None:
        """Draw points with tooltips; ``joined`` draws a line through all and marks some of them."""
        if not points:
            return
        marked = thin(range(len(points))) if joined else list(range(len(points)))
        (line,) = axes.plot(
            [point.x for point in points],
            [point.y for point in points],
            linestyle=style.dash if joined else "none",
            linewidth=1.5,
            marker=marker or style.marker,
            markevery=marked,
            markersize=size,
            color=style.colour,
            alpha=alpha,
            markerfacecolor="none" if hollow else style.colour,
            markeredgewidth=1.0,
        )
        gid = f"points-{len(self.points)}"
        line.set_gid(gid)
        self.points[gid] = [points[place] for place in marked]
        if label:
            self._legend[label] = line

    def add_baseline(
        self, axes: Axes, baseline: float | None, metric: str, *, vertical: bool = False
    ) -> None:
        """Draw the metric of the best constant prediction, if there is one."""
        if baseline is not None:
            draw = axes.axvline if vertical else axes.axhline
            line = draw(display_factor(metric) * baseline, color="black", alpha=0.6, linewidth=1.2)
            line.set_linestyle((0, (1, 2)))
            self._legend[f"chance {format_score(baseline, metric)}"] = line

    def label_axes(self, axes: Axes, x: str, y: str) -> None:
        """Name the axes, with units."""
        axes.set_xlabel(x, fontsize=FONT)
        axes.set_ylabel(y, fontsize=FONT, labelpad=6)

    def use_log_scale(self, axes: Axes, *, x: bool = False, y: bool = False) -> None:
        """Make axes logarithmic, with plain numbers at their ticks."""
        for wanted, axis, set_scale in (
            (x, axes.xaxis, axes.set_xscale),
            (y, axes.yaxis, axes.set_yscale),
        ):
            if wanted:
                set_scale("log")
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                low, high = sorted(axis.get_data_interval())
                # Within two decades the powers of ten are too few to read values from.
                few = low > 0 and high / low < 100
                minor = FuncFormatter(_format_minor_tick) if few else NullFormatter()
                axis.set_minor_formatter(minor)
                axes.tick_params(which="minor", labelsize=FONT, color=(0, 0, 0, 0.25))

    def use_integer_ticks(self, axes: Axes) -> None:
        """Use only whole numbers along the x axis."""
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))

    def set_ticks(self, axis: Axis, values: Sequence[float]) -> None:
        """Place ticks at exactly these values, if they are few and not too close."""
        apart = all(after / before > 1.25 for before, after in pairwise(values))
        if len(values) <= MOST_TICKS and apart:
            axis.set_ticks(values, labels=[f"{value:g}" for value in values])
            axis.set_ticks([], minor=True)

    def build(self, title: str, caption: str, table: Table) -> Chart:
        """Return the finished chart, its legend above the axes in as many columns as fit."""
        if self._legend:
            labels = [shorten(label, 60) for label in self._legend]
            self.figure.legend(
                self._legend.values(),
                labels,
                loc="outside upper left",
                ncols=max(1, min(len(labels), int(100 / (max(map(len, labels)) + 8)))),
                fontsize=FONT,
                frameon=False,
                handlelength=2.6,
                columnspacing=1.4,
            )
        return Chart(self.figure, title, caption, table, self.points)


def display_factor(metric: str) -> float:
    """Return what a score is multiplied by on an axis: an accuracy is shown in per cent."""
    return 100 if metric == "accuracy" else 1


def _format_minor_tick(value: float, _: object) -> str:
    """Label some of the ticks between powers of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def thin(places: Sequence[int]) -> list[int]:
    """Select some of many places evenly; the last one is always among them.

    >>> thin(range(1, 4)), thin(range(100))[-2:]
    ([1, 2, 3], [96, 99])
    """
    some = list(places[:: max(1, -(-len(places) // MOST_POINTS))])
    return some if some[-1:] == list(places[-1:]) else [*some, places[-1]]


def replace_control_characters(text: str) -> str:
    """Replace control characters, which are not allowed in a document.

    >>> replace_control_characters("a\\x00b")
    'a·b'
    """
    return "".join("·" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def shorten(text: str, length: int = 14) -> str:
    """Shorten a name so that it fits below a tick or into a legend.

    Dollar signs are escaped, since matplotlib would read a formula between them.

    >>> shorten("a very long name of a client", 10), shorten("5 $")
    ('a very lo…', '5 \\\\$')
    """
    text = replace_control_characters(text)
    text = text if len(text) <= length else text[: length - 1] + "…"
    return text.replace("$", r"\$")
