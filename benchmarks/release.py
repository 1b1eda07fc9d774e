"""Row 1: a release with exact system noise against the float32 noise that it replaced."""

import os
from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from benchmarks.harness import Row, interleaved, versions
from pacdp.clipping import ClippedSum, SystemNoise, release
from pacdp.models import build_model
from pacdp.privacy import Adjacency

NOISE, DIVISOR, GOAL, REPEATS = 7.0, 16.0, 2.0, 5


def rows() -> Iterator[Row]:
    """One release of all parameters of a ResNet-18, both ways in turns, on one thread."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model("resnet18", shape=(3, 32, 32), outputs=10)
    clean = {name: torch.randn_like(value) * 1e-4 for name, value in model.named_parameters()}
    source = SystemNoise()

    def exact() -> dict[str, Tensor]:
        # The tensors are taken out of the value, so each release needs a new one of the same.
        total = ClippedSum(
            values=dict(clean), bound=1.0, sensitivity=1.0, adjacency=Adjacency.ZERO_OUT
        )
        return release(total, z=NOISE, divisor=DIVISOR, noise=source)

    def inexact() -> dict[str, Tensor]:
        return {name: add_float_noise(value) for name, value in clean.items()}

    before, ours = interleaved(inexact, exact, repeats=REPEATS)
    yield Row(
        row=1,
        work="a release of 11 million coordinates, exact system noise",
        against="float32 noise through the inverse distribution function",
        ratio=ours / before,
        goal=f"<= {GOAL:g}x",
        holds=ours / before <= GOAL,
        versions=versions("pacdp", "torch", "numpy", "scipy"),
        details={
            "seconds_float32": before,
            "seconds_pacdp": ours,
            "coordinates": float(sum(value.numel() for value in clean.values())),
        },
    )


def add_float_noise(clean: Tensor) -> Tensor:
    """As the first version did: 52 bits, the inverse distribution function, float32.

    Fast, but not private: it ends at 8.2 σ, and its low bits reveal the value underneath.
    """
    bits = np.frombuffer(os.urandom(8 * clean.numel()), dtype=np.uint64)
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise = torch.from_numpy(ndtri(uniform) * (NOISE / DIVISOR)).reshape(clean.shape).float()
    return noise.add_(clean, alpha=1 / DIVISOR)
