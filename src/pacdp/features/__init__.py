"""What a model sees instead of the records: public maps, fixed before any private record is read.

Noise grows with the number of weights, so what a budget buys depends on how few numbers tell the
classes apart. A map that uses nothing private costs no privacy, whatever it does.
"""

from pacdp.features.configuration import Representation, Track
from pacdp.features.pipeline import Fitted, fitted, refuse_private, represent
from pacdp.features.public_data import POOLS, Pool, pool

__all__ = [
    "POOLS",
    "Fitted",
    "Pool",
    "Representation",
    "Track",
    "fitted",
    "pool",
    "refuse_private",
    "represent",
]
