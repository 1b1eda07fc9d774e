"""Colours that people with any kind of colour vision can tell apart, for light and dark pages.

They follow Okabe and Ito, with the pale ones darkened so that thin lines are seen on white. A
colour never stands alone: each has a dash and a marker of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pacdp.report.comparison import Arms

Dash = Literal["-"] | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    dark: str
    """The same on a dark page."""
    dash: Dash
    marker: str


LOOKS = (
    Look("#0072b2", "#5ab4ee", "-", "o"),
    Look("#c44f00", "#ff9452", (0, (5, 1.6)), "s"),
    Look("#00805c", "#3fcf9f", (0, (6, 1.6, 1.2, 1.6)), "^"),
    Look("#a8487f", "#e79cc6", (0, (1.4, 1.4)), "D"),
    Look("#8a6500", "#e3b341", (0, (3, 1.2)), "v"),
    Look("#4f43a6", "#aca3fa", (0, (8, 2)), "P"),
    Look("#5d6570", "#b3bac4", (0, (1.2, 2.4)), "X"),
    Look("#7b3f1d", "#d9a27e", (0, (4, 1.4, 1.2, 1.4, 1.2, 1.4)), "<"),
    Look("#0b7a8f", "#4ccbe0", (0, (2.4, 1)), ">"),
)
# The well-known ones look the same on every page.
USUAL = {
    **{"pac-dp": 0, "fixed": 1, "dp-fedavg": 2, "nbafl": 3, "rpdp-fl": 4},
    **{"cgm-median": 5, "fedavg": 6, "nbafl-original": 7, "aqc": 8},
}


def look(number: int) -> Look:
    """The look of a series by its number; after the last colours come again, otherwise dashed.

    >>> look(0).colour, look(9).colour, look(9).marker == look(0).marker
    ('#0072b2', '#0072b2', False)
    """
    first = LOOKS[number % len(LOOKS)]
    if number < len(LOOKS):
        return first
    other = LOOKS[(number + len(LOOKS) // 2) % len(LOOKS)]
    return replace(first, dash=other.dash, marker=other.marker)


def looks_of(arms: Arms) -> Mapping[str, Look]:
    """One look for each arm: its method's usual one if nobody has it yet, else one that is free."""
    taken: dict[str, int] = {}
    for label, outcomes in arms.items():
        wanted = USUAL.get(outcomes[0].plan.method)
        if wanted is not None and wanted not in taken.values():
            taken[label] = wanted
    for label in arms:
        if label not in taken:
            free = [n for n in range(len(LOOKS)) if n not in taken.values()]
            taken[label] = free[0] if free else len(taken)
    return {label: look(taken[label]) for label in arms}
