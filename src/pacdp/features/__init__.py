"""Public features: what a model is trained on instead of the records.

Noise grows with the number of weights, so accuracy depends on how few numbers separate the classes.
A map that is fixed before any private record is read costs no privacy.
"""

from pacdp.features.configuration import Features, Track
from pacdp.features.pipeline import (
    FeaturePipeline,
    extract_features,
    fit_features,
    refuse_public_overlap,
)
from pacdp.features.public_data import PUBLIC_DATA, PublicData, load_public_data

__all__ = [
    "PUBLIC_DATA",
    "FeaturePipeline",
    "Features",
    "PublicData",
    "Track",
    "extract_features",
    "fit_features",
    "load_public_data",
    "refuse_public_overlap",
]
