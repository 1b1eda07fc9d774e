"""``python -m benchmarks.duration``: does the time that a step takes reveal what a record holds?

A client's clipped, noised step is timed with an ordinary record in one place of the batch and with
one that overflows, or whose features are all subnormal. The two arms take turns in a random order,
in one process, on one thread. The AUC is the probability that a step with the odd record takes
longer than one without: 0.5 reveals nothing.
"""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pacdp.clipping import ClippedGradient, CrossEntropy, SystemNoise, release
from pacdp.models import build_model

REPEATS, WARM, EXAMPLES, ODD = 1000, 50, 128, 17
BOUND, NOISE = 1.0, 7.0
ALLOWED = (0.45, 0.55)
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A model, and the shape of its records."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int


CASES = (
    Case("Linear 13-2", lambda: nn.Linear(13, 2), (13,), 2),
    Case(
        "MLP 784-100-10",
        lambda: build_model("mlp", shape=(784,), outputs=10, hidden=100),
        (784,),
        10,
    ),
    Case("CNN", lambda: build_model("cnn", shape=(1, 28, 28), outputs=10), (1, 28, 28), 10),
)
# What the odd record holds; 1e30 overflows where norms are squared, 3e38 already before that.
RECORDS = {"overflowing, 1e30": 1e30, "overflowing, 3e38": 3e38, "subnormal, 1e-40": 1e-40}


def main() -> None:
    """Measure and print every case; the first arm against itself shows what chance does."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for case in CASES:
        gradient = ClippedGradient(case.make(), CrossEntropy(), adjacency="zero-out")
        inputs = torch.randn(EXAMPLES, *case.shape)
        targets = torch.arange(EXAMPLES) % case.classes
        for name, value in {"the same again": None, **RECORDS}.items():
            other = inputs.clone()
            if value is not None:
                other[ODD] = value
            plain, odd = time_both(gradient, (inputs, other), targets)
            area, error = auc(plain, odd)
            holds = "yes" if ALLOWED[0] <= area <= ALLOWED[1] else "NO"
            print(
                f"{case.name:15} {name:18} AUC {area:.3f} ± {error:.3f}  medians "
                f"{np.median(plain) * 1e6:8.1f} and {np.median(odd) * 1e6:8.1f} µs  "
                f"within {ALLOWED[0]} to {ALLOWED[1]}: {holds}"
            )


def time_both(
    gradient: ClippedGradient, arms: tuple[Tensor, Tensor], targets: Tensor
) -> tuple[Times, Times]:
    """Seconds of each step of both arms, in turns of random order."""
    taken: list[list[float]] = [[], []]
    order = random.Random(0)
    noise = SystemNoise()
    gc.collect()
    gc.disable()
    try:
        for turn in range(WARM + REPEATS):
            for arm in order.sample((0, 1), 2):
                # A fresh copy for both arms, so that only the numbers differ.
                inputs = arms[arm].clone()
                start = time.perf_counter()
                total = gradient(inputs, targets, clipping_bound=BOUND)
                release(total, z=NOISE, divisor=float(EXAMPLES), noise=noise)
                seconds = time.perf_counter() - start
                if turn >= WARM:
                    taken[arm].append(seconds)
    finally:
        gc.enable()
    return np.array(taken[0]), np.array(taken[1])


def auc(plain: Times, odd: Times) -> tuple[float, float]:
    """How often an odd step takes longer than a plain one (Mann-Whitney), and its standard error.

    >>> auc(np.array([1.0, 2.0]), np.array([3.0, 4.0]))[0]
    1.0
    """
    ordered = np.sort(plain)
    below = np.searchsorted(ordered, odd, side="left")
    within = np.searchsorted(ordered, odd, side="right") - below
    shares = (below + within / 2) / len(plain)
    others = np.sort(odd)
    above = len(odd) - np.searchsorted(others, plain, side="right")
    ties = len(odd) - above - np.searchsorted(others, plain, side="left")
    losses = (above + ties / 2) / len(odd)
    # DeLong's variance.
    error = np.sqrt(shares.var(ddof=1) / len(odd) + losses.var(ddof=1) / len(plain))
    return float(shares.mean()), float(error)


if __name__ == "__main__":
    main()
