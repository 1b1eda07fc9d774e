"""How numbers are written for people, in a terminal, in a table and on a page."""

import statistics
from collections.abc import Sequence

# For what there is not.
NOTHING = "–"
# So many different numbers are told one by one.
MOST_LISTED = 3


def number(value: float | Sequence[float] | None, digits: int = 3) -> str:
    """A few digits; several numbers with commas, and a dash for what there is not.

    >>> number(0.04999999), number([1.5, 20.0]), number(None)
    ('0.05', '1.5, 20', '–')
    """
    if value is None:
        return NOTHING
    if isinstance(value, Sequence):
        return ", ".join(number(one, digits) for one in value)
    return f"{value:.{digits}g}"


def score(value: float | None, metric: str) -> str:
    """An accuracy in per cent, a loss as it is.

    >>> score(0.608, "accuracy"), score(0.75268, "loss")
    ('60.8 %', '0.7527')
    """
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def mean_and_deviation(mean: float, deviation: float, metric: str) -> str:
    """A mean with the standard deviation over seeds.

    >>> mean_and_deviation(0.608, 0.0213, "accuracy")
    '60.8 ± 2.1 %'
    """
    if metric == "accuracy":
        return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    return f"{mean:.4g} ± {deviation:.2g}"


def least_middle_most(values: Sequence[float]) -> str:
    """A few numbers one by one; of more the least / the median / the most, each one of them.

    >>> least_middle_most([0.5, 0.05, 0.01, 0.01]), least_middle_most([1.0, 1.0])
    ('0.01, 0.05, 0.5', '1')
    >>> least_middle_most([0.1, 0.2, 0.3, 0.4])
    '0.1 / 0.2 / 0.4'
    """
    different = sorted({f"{value:.4g}" for value in values}, key=float)
    if len(different) <= MOST_LISTED:
        return ", ".join(different) or NOTHING
    chosen = (min(values), statistics.median_low(values), max(values))
    return " / ".join(f"{value:.4g}" for value in chosen)


def size(count: float) -> str:
    """Bytes in the unit that suits them.

    >>> size(896), size(8960), size(3_400_000)
    ('896 B', '8.96 kB', '3.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> duration(0.444), duration(600)
    ('0.44 s', '10 min')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, one: str) -> str:
    """A number with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def terms(delta: float, adjacency: str, unit: str = "record") -> str:
    """What stands beside every ε: its δ, its adjacency, and the unit where that is no record.

    >>> terms(1e-5, "zero-out"), terms(1e-6, "replace-one", "patient")
    ('δ = 1e-05, zero-out', 'δ = 1e-06, replace-one of a patient')
    """
    of = "" if unit == "record" else f" of a {unit}"
    return f"δ = {delta:g}, {adjacency}{of}"
