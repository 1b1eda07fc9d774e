"""What a model sees instead of the records: public maps, fixed before any private record is read.

Noise grows with the number of weights, so what a budget buys depends on how few numbers tell the
classes apart. A map that uses nothing private costs no privacy, whatever it does.
"""

from pacdp.features.configuration import Features, Track
from pacdp.features.pipeline import Fitted, extract_features, fit_features, refuse_public_overlap
from pacdp.features.public_data import PUBLIC_DATA, PublicData, load_public_data

__all__ = [
    "PUBLIC_DATA",
    "Features",
    "Fitted",
    "PublicData",
    "Track",
    "extract_features",
    "fit_features",
    "load_public_data",
    "refuse_public_overlap",
]
