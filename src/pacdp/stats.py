"""Statistics over seeds: means, standard deviations and paired differences."""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleStats:
    """Mean and standard deviation of a sample, usually one value per seed."""

    mean: float
    deviation: float
    """Of the sample (n - 1); 0 for a single value."""
    count: int

    @classmethod
    def of(cls, values: Collection[float]) -> "SampleStats":
        """Summarise a sample.

        >>> SampleStats.of([1.0, 3.0])
        SampleStats(mean=2.0, deviation=1.4142135623730951, count=2)
        """
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation, len(values))

    @property
    def standard_error(self) -> float:
        """The standard error of the mean; 0 for a single value."""
        return self.deviation / math.sqrt(self.count)


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], *, scale: float = 1.0
) -> SampleStats:
    """Summarise the differences of two samples, seed by seed.

    >>> paired_difference([0.5, 0.75], [0.5, 0.5], scale=100).mean
    12.5
    """
    return SampleStats.of([scale * (a - b) for a, b in zip(ours, theirs, strict=True)])


def confidence_radius(standard_error: float, count: int) -> float:
    """Half the width of the 95 % confidence interval of a mean, by Student's t.

    A single value says nothing about the spread: its interval is infinite.

    >>> round(confidence_radius(1.0, count=5), 3)
    2.776
    """
    if count < 2:
        return math.inf
    from scipy.stats import t as student

    return float(student.ppf(0.975, count - 1)) * standard_error
