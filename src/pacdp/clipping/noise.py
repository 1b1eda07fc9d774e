"""Where noise comes from: a seed in simulation, the operating system in a federation.

What floating point can leak. Both sources round a real Gaussian to floating-point numbers, and so
does adding it to a value. The set of numbers that can come out depends a little on the value
underneath, and in theory low bits can tell values apart (Mironov 2012, for Laplace noise; Jin et
al. 2022, for Gaussian noise in common libraries). Sums of thousands of noised coordinates, rescaled
and aggregated, make that hard to use, but the proof speaks of real numbers. Do not publish raw
releases of few coordinates at full precision where that matters.
"""

import os
import struct
import threading
from hashlib import shake_128
from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from pacdp.errors import InputError


class NoiseSource(Protocol):
    """A source of Gaussian noise."""

    def normal(self, like: Tensor, sigma: float) -> Tensor:
        """New independent N(0, σ²) values in the shape, type and place of ``like``."""


class SimulatedNoise:
    """Reproducible noise of one step: the same for the same (seed, client, round, step).

    For simulation only. Whoever knows the seed can take the noise off again.

    >>> one = SimulatedNoise(seed=7, client=0, round=3, step=1)
    >>> same = SimulatedNoise(seed=7, client=0, round=3, step=1)
    >>> torch.equal(one.normal(torch.zeros(5), 1.0), same.normal(torch.zeros(5), 1.0))
    True
    """

    def __init__(self, *, seed: int, client: int, round: int, step: int) -> None:  # noqa: A002
        try:
            words = struct.pack(">qqqq", seed, client, round, step)
        except struct.error:
            raise InputError(
                f"noise key {(seed, client, round, step)}: must be 64-bit whole numbers"
            ) from None
        self._key = words
        self._generator: torch.Generator | None = None

    def normal(self, like: Tensor, sigma: float) -> Tensor:
        return self.fill(torch.empty_like(like), sigma)

    def fill(self, out: Tensor, sigma: float) -> Tensor:
        """The same in a tensor that is there."""
        if self._generator is None:
            self._generator = _generator(self._key, out.device)
        return out.normal_(0, sigma, generator=self._generator)


# How torch saves its Mersenne twister: a header, then 624 words of state, each in eight bytes.
_WORDS, _HEADER = 624, 24
_SEEDED = torch.Generator().manual_seed(0).get_state().numpy()


class _State(threading.local):
    """A state to be filled in and copied, for each thread."""

    def __init__(self) -> None:
        state = _SEEDED.copy()
        self.words = state[_HEADER : _HEADER + 8 * _WORDS].view(np.uint64)
        self.whole = torch.from_numpy(state)


_state = _State()


def _generator(key: bytes, device: torch.device) -> torch.Generator:
    """A generator whose whole state is a hash of the key.

    torch seeds its generator on the processor with 32 bits, of which a simulation of a few hundred
    thousand steps would use some twice.
    """
    stream = shake_128(key)
    if device.type != "cpu":
        return torch.Generator(device).manual_seed(int.from_bytes(stream.digest(8), "big") >> 1)
    _state.words[:] = np.frombuffer(stream.digest(4 * _WORDS), dtype=np.uint32)
    generator = torch.Generator()
    generator.set_state(_state.whole)
    return generator


class SystemNoise:
    """Noise from the operating system's entropy, for a real federation. No seed, no repeat.

    >>> SystemNoise().normal(torch.zeros(3), 1.0).shape
    torch.Size([3])
    """

    def normal(self, like: Tensor, sigma: float) -> Tensor:
        bits = np.frombuffer(os.urandom(8 * like.numel()), dtype=np.uint64)
        # The middle of each of 2^52 equal cells: never 0 or 1, and symmetric about one half.
        uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        values = torch.from_numpy(ndtri(uniform) * sigma).reshape(like.shape)
        return values.to(dtype=like.dtype, device=like.device)
