"""A figure together with what it says: its points' values, a caption, and all of its numbers."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from pacdp.report.figures.palette import Look

# In inches; a page shows them about as wide as a column of text.
WIDTH, HEIGHT = 7.6, 3.7
FONT = 8.5
MOST_TICKS = 10
# More points than these on a line are too close to be pointed at.
MOST_POINTS = 40


@dataclass(frozen=True)
class Table:
    """Words in rows and columns. The first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Tip:
    """What a point says when it is pointed at."""

    text: str
    client: str = ""
    """Whose point it is, where it is a client's."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure that can be read by those who do not see it."""

    figure: Figure
    title: str
    caption: str
    numbers: Table
    tips: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    """For each group of points, by its gid, what each of them says."""


class Sketch:
    """A figure under way, which remembers what its points say.

    >>> from pacdp.report.figures.palette import look
    >>> sketch = Sketch()
    >>> sketch.points(sketch.axes[0], [1, 2], [3, 4], [Tip("three"), Tip("four")], look(0))
    >>> [tip.text for tip in sketch.tips["points-0"]]
    ['three', 'four']
    """

    def __init__(self, *, columns: int = 1, height: float = HEIGHT) -> None:
        self.figure = Figure(figsize=(WIDTH, height), layout="constrained")
        self.axes: list[Axes] = list(self.figure.subplots(1, columns, squeeze=False)[0])
        self.tips: dict[str, tuple[Tip, ...]] = {}
        for axes in self.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["bottom", "left"]].set_alpha(0.45)
            axes.tick_params(labelsize=FONT, color=(0, 0, 0, 0.45))
            axes.grid(color="black", alpha=0.1, linewidth=0.7)
            axes.set_axisbelow(True)

    def points(
        self,
        axes: Axes,
        x: Sequence[float],
        y: Sequence[float],
        tips: Sequence[Tip],
        look: Look,
        *,
        size: float = 4.5,
        hollow: bool = False,
        marker: str | None = None,
        alpha: float = 1.0,
    ) -> None:
        """Draw points, each with its tip."""
        if not tips:
            return
        (drawn,) = axes.plot(
            x,
            y,
            linestyle="none",
            marker=marker or look.marker,
            markersize=size,
            color=look.colour,
            alpha=alpha,
            markerfacecolor="none" if hollow else look.colour,
            markeredgewidth=1.0,
        )
        gid = f"points-{len(self.tips)}"
        drawn.set_gid(gid)
        self.tips[gid] = tuple(tips)

    def line(self, axes: Axes, x: Sequence[float], y: Sequence[float], look: Look) -> None:
        """Draw a line without points."""
        axes.plot(x, y, color=look.colour, linestyle=look.dash, linewidth=1.5)

    def level(self, axes: Axes, value: float, *, upright: bool = False) -> None:
        """Draw a line across, such as chance."""
        draw = axes.axvline if upright else axes.axhline
        draw(value, color="black", alpha=0.6, linestyle=(0, (1, 2)), linewidth=1.2)

    def label(self, axes: Axes, x: str, y: str, title: str = "") -> None:
        """Name the axes, with units."""
        axes.set_xlabel(x, fontsize=FONT)
        axes.set_ylabel(y, fontsize=FONT, labelpad=6)
        if title:
            axes.set_title(plain(title), fontsize=FONT, loc="left")

    def logarithmic(self, axes: Axes, *, x: bool = False, y: bool = False) -> None:
        """Logarithmic axes with plain numbers."""
        for wanted, axis, set_scale in (
            (x, axes.xaxis, axes.set_xscale),
            (y, axes.yaxis, axes.set_yscale),
        ):
            if wanted:
                set_scale("log")
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                low, high = sorted(axis.get_data_interval())
                # Within a decade or two the powers of ten are too few to read from.
                few = low > 0 and high / low < 100
                minor = FuncFormatter(_first_digits) if few else NullFormatter()
                axis.set_minor_formatter(minor)
                axes.tick_params(which="minor", labelsize=FONT, color=(0, 0, 0, 0.25))

    def whole(self, axes: Axes) -> None:
        """Only whole numbers along the x axis: rounds, or places."""
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))

    def ticks(self, axis: Axis, values: Sequence[float]) -> None:
        """Ticks at these values and nowhere else, if they are few and not too close."""
        apart = all(after / before > 1.25 for before, after in pairwise(values))
        if len(values) <= MOST_TICKS and apart:
            axis.set_ticks(values, labels=[f"{value:g}" for value in values])
            axis.set_ticks([], minor=True)

    def legend(
        self, entries: Mapping[str, Look], *, chance: float | None = None, lines: bool = True
    ) -> None:
        """Above the axes, where it hides nothing."""
        handles = [
            Line2D(
                *([], []),
                color=look.colour,
                linestyle=look.dash if lines else "none",
                marker=look.marker,
                markersize=4.5,
                linewidth=1.5,
                label=plain(short(label, 60)),
            )
            for label, look in entries.items()
        ]
        if chance is not None:
            dotted = {"color": "black", "alpha": 0.6, "linestyle": (0, (1, 2)), "linewidth": 1.2}
            handles.append(Line2D([], [], label=f"chance {100 * chance:.1f} %", **dotted))  # type: ignore[arg-type]
        self.place(handles)

    def place(self, handles: Sequence[Line2D]) -> None:
        """A legend of these, in as many columns as there is room for."""
        if not handles:
            return
        widest = max(len(str(handle.get_label())) for handle in handles)
        self.figure.legend(
            handles=list(handles),
            loc="outside upper left",
            ncols=max(1, min(len(handles), int(100 / (widest + 8)))),
            fontsize=FONT,
            frameon=False,
            handlelength=2.6,
            columnspacing=1.4,
        )

    def done(self, title: str, caption: str, numbers: Table) -> Picture:
        """The picture."""
        return Picture(self.figure, title, caption, numbers, self.tips)


def _first_digits(value: float, _: object) -> str:
    """Some of the numbers between powers of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def thinned(places: Sequence[int]) -> list[int]:
    """Some of many, evenly; the last is always among them, as it is what counts in the end.

    >>> thinned(range(1, 4)), thinned(range(100))[-2:]
    ([1, 2, 3], [96, 99])
    """
    some = list(places[:: max(1, -(-len(places) // MOST_POINTS))])
    return some if some[-1:] == list(places[-1:]) else [*some, places[-1]]


def plain(text: str) -> str:
    """Text in which a dollar is a dollar and begins no formula.

    >>> plain("5 $")
    '5 \\\\$'
    """
    return text.replace("$", r"\$")


def printable(text: str) -> str:
    """Text without control characters, which no document may hold.

    >>> printable("a\\x00b")
    'a·b'
    """
    return "".join("·" if unicodedata.category(one) in ("Cc", "Cs") else one for one in text)


def short(text: str, length: int = 14) -> str:
    """A name that fits below a tick.

    >>> short("a very long name of a client", 10)
    'a very lo…'
    """
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"
