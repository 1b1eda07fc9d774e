"""The plan, chosen on public data alone.

Rounds, steps, batches, distance, bound, dimension, averaging and weights cost no privacy to choose
as long as no private record is looked at. Every method can have the same search.
"""

from pacdp.tuning.coordinate_search import Found, Step, search
from pacdp.tuning.tuned_configuration import Expected, Promised, Tuned, overruled, with_plan
from pacdp.tuning.tuner import tune

__all__ = [
    "Expected",
    "Found",
    "Promised",
    "Step",
    "Tuned",
    "overruled",
    "search",
    "tune",
    "with_plan",
]
