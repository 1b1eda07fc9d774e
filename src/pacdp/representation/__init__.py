"""What a model sees instead of the records: public maps, fixed before any private record is read.

Noise grows with the number of weights, so what a budget buys depends on how few numbers tell the
classes apart. A map that uses nothing private costs no privacy, whatever it does.
"""

from pacdp.representation.configuration import Representation, Track
from pacdp.representation.pools import POOLS, Pool, pool
from pacdp.representation.represent import Fitted, fitted, refuse_private, represent

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
