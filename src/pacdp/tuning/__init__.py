"""Hyperparameter search on public data alone.

Choosing rounds, steps, batches, distance, bound, dimension, averaging and weights costs no privacy
as long as no private record is used. Every method gets the same search.
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
