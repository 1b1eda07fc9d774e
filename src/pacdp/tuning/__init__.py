"""The plan, chosen on public data alone.

Rounds, steps, batches, distance, bound, dimension, averaging and weights cost no privacy to choose
as long as no private record is looked at. Every method can have the same search.
"""

from pacdp.tuning.coordinate_search import SearchResult, SearchStep, search_coordinates
from pacdp.tuning.tuned_configuration import (
    ExpectedScore,
    PrivacyTerms,
    TunedConfiguration,
    apply_configuration,
    find_contradiction,
)
from pacdp.tuning.tuner import tune

__all__ = [
    "ExpectedScore",
    "PrivacyTerms",
    "SearchResult",
    "SearchStep",
    "TunedConfiguration",
    "apply_configuration",
    "find_contradiction",
    "search_coordinates",
    "tune",
]
