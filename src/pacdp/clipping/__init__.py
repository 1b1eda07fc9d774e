"""Per-example clipping, and noise: clipped sums carry their own sensitivity.

Nothing here knows about a federation.
"""

from pacdp.clipping.bounded import (
    Bounded,
    ClippedSum,
    centred_count,
    clip_upload,
    release,
)
from pacdp.clipping.compatibility import require_private, without_batch_norm
from pacdp.clipping.gradient import ClippedGradient
from pacdp.clipping.inspection import check_model
from pacdp.clipping.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from pacdp.clipping.noise import NoiseSource, SimulatedNoise, SystemNoise
from pacdp.clipping.stacked import StackedGradient, StackedGrid, StackedLevels, StackedSum

__all__ = [
    "BinaryCrossEntropy",
    "Bounded",
    "ClippedGradient",
    "ClippedSum",
    "CrossEntropy",
    "NoiseSource",
    "SimulatedNoise",
    "SquaredError",
    "StackedGradient",
    "StackedGrid",
    "StackedLevels",
    "StackedSum",
    "SystemNoise",
    "centred_count",
    "check_model",
    "clip_upload",
    "release",
    "require_private",
    "without_batch_norm",
]
