"""Series styles that readers with any kind of colour vision can tell apart, in light and dark.

Colours follow Okabe and Ito, with the pale ones darkened so that thin lines are visible on white.
No style relies on colour alone: each has its own dash and marker.
"""

from dataclasses import dataclass, replace
from typing import Literal

Dash = Literal["-"] | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class SeriesStyle:
    """How one series is drawn."""

    colour: str
    dark_colour: str
    """The same colour on a dark page."""
    dash: Dash
    marker: str


STYLES = (
    SeriesStyle("#0072b2", "#5ab4ee", "-", "o"),
    SeriesStyle("#c44f00", "#ff9452", (0, (5, 1.6)), "s"),
    SeriesStyle("#00805c", "#3fcf9f", (0, (6, 1.6, 1.2, 1.6)), "^"),
    SeriesStyle("#a8487f", "#e79cc6", (0, (1.4, 1.4)), "D"),
    SeriesStyle("#8a6500", "#e3b341", (0, (3, 1.2)), "v"),
    SeriesStyle("#4f43a6", "#aca3fa", (0, (8, 2)), "P"),
    SeriesStyle("#5d6570", "#b3bac4", (0, (1.2, 2.4)), "X"),
    SeriesStyle("#7b3f1d", "#d9a27e", (0, (4, 1.4, 1.2, 1.4, 1.2, 1.4)), "<"),
    SeriesStyle("#0b7a8f", "#4ccbe0", (0, (2.4, 1)), ">"),
)


def series_style(position: int) -> SeriesStyle:
    """Return the style of a series by its position.

    After the last colour the first comes again, with another dash and marker.

    >>> series_style(0).colour, series_style(9).colour, series_style(9).marker
    ('#0072b2', '#0072b2', 'v')
    """
    style = STYLES[position % len(STYLES)]
    if position < len(STYLES):
        return style
    other = STYLES[(position + len(STYLES) // 2) % len(STYLES)]
    return replace(style, dash=other.dash, marker=other.marker)
