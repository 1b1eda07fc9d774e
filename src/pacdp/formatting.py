"""Format numbers for people: in terminals, tables and reports."""

import statistics
from collections.abc import Sequence

# Shown where there is no value.
MISSING = "–"
# Up to this many different numbers are listed individually.
MAX_LISTED = 3


def format_number(value: float | Sequence[float] | None, digits: int = 3) -> str:
    """Format a number with a few digits, several with commas, and a missing one as a dash.

    >>> format_number(0.04999999), format_number([1.5, 20.0]), format_number(None)
    ('0.05', '1.5, 20', '–')
    """
    if value is None:
        return MISSING
    if isinstance(value, Sequence):
        return ", ".join(format_number(item, digits) for item in value)
    return f"{value:.{digits}g}"


def format_score(value: float | None, metric: str) -> str:
    """Format an accuracy in percent, and any other metric as a number.

    >>> format_score(0.608, "accuracy"), format_score(0.75268, "loss")
    ('60.8 %', '0.7527')
    """
    if value is None:
        return MISSING
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def format_mean_deviation(mean: float, deviation: float, metric: str) -> str:
    """Format a mean with the standard deviation over seeds.

    >>> format_mean_deviation(0.608, 0.0213, "accuracy")
    '60.8 ± 2.1 %'
    """
    if metric == "accuracy":
        return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    return f"{mean:.4g} ± {deviation:.2g}"


def format_min_median_max(values: Sequence[float]) -> str:
    """List a few different numbers, or show minimum / median / maximum of more.

    >>> format_min_median_max([0.5, 0.05, 0.01, 0.01]), format_min_median_max([1.0, 1.0])
    ('0.01, 0.05, 0.5', '1')
    >>> format_min_median_max([0.1, 0.2, 0.3, 0.4])
    '0.1 / 0.2 / 0.4'
    """
    distinct = sorted({f"{value:.4g}" for value in values}, key=float)
    if len(distinct) <= MAX_LISTED:
        return ", ".join(distinct) or MISSING
    summary = (min(values), statistics.median_low(values), max(values))
    return " / ".join(f"{value:.4g}" for value in summary)


def format_bytes(count: float) -> str:
    """Format a number of bytes in a suitable unit.

    >>> format_bytes(896), format_bytes(8960), format_bytes(3_400_000)
    ('896 B', '8.96 kB', '3.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> format_duration(0.444), format_duration(600)
    ('0.44 s', '10 min')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun.

    >>> format_count(1, "seed"), format_count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_terms(delta: float, adjacency: str, unit: str = "record") -> str:
    """Format what defines an ε: δ, adjacency, and the protected unit if it is not a record.

    >>> format_terms(1e-5, "zero-out"), format_terms(1e-6, "replace-one", "patient")
    ('δ = 1e-05, zero-out', 'δ = 1e-06, replace-one of a patient')
    """
    of = "" if unit == "record" else f" of a {unit}"
    return f"δ = {delta:g}, {adjacency}{of}"
