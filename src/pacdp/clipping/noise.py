"""Sources of noise: a seed in simulations, the operating system in a real federation.

Noise is drawn in whole steps of the public grid on which values are released: round(s·Z) for a
standard normal Z and a scale s = σ/g. The system source draws from exactly this distribution
(:mod:`pacdp.clipping.rounded_gaussian`). The simulated source rounds numbers from a fast generator,
which is good enough as long as nothing leaves the machine.
"""

import struct
import threading
from hashlib import shake_128
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pacdp.clipping.coins import sample_coins
from pacdp.clipping.rounded_gaussian import sample_rounded_gaussian
from pacdp.errors import InputError

# Drawing fewer numbers than this takes just as long.
SMALLEST_DRAW = 512


class NoiseSource(Protocol):
    """The randomness of one participation: Gaussian noise in whole numbers, and hidden sampling."""

    def integers(self, count: int, scale: float) -> Tensor:
        """Draw round(scale·Z) for standard normal Z, independently: (count,), whole numbers."""

    def coins(self, count: int, rate: float) -> Tensor:
        """Draw independent booleans that are true with at most this probability: (count,)."""


class SimulatedNoise:
    """Reproducible noise of one participation: the same for the same (seed, client, round).

    The numbers form one stream and do not depend on how many are drawn at a time. For simulations
    only: whoever knows the seed can subtract the noise again, so a durable ledger refuses it.

    >>> first = SimulatedNoise(seed=7, client=0, round=3)
    >>> second = SimulatedNoise(seed=7, client=0, round=3)
    >>> draws = [second.integers(count, 100.0) for count in (2, 3)]
    >>> torch.equal(first.integers(5, 100.0), torch.cat(draws))
    True
    """

    def __init__(self, *, seed: int, client: int, round: int) -> None:  # noqa: A002
        try:
            self._key = struct.pack(">qqq", seed, client, round)
        except struct.error:
            raise InputError(
                f"noise key {(seed, client, round)}: must be 64-bit whole numbers"
            ) from None
        self._generator: torch.Generator | None = None
        self._left = torch.empty(0)
        self._coins: np.random.Generator | None = None

    def integers(self, count: int, scale: float) -> Tensor:
        """Draw round(scale·Z), in single precision."""
        return self.normals(count).mul_(scale).round_()

    def normals(self, count: int) -> Tensor:
        """Draw the next standard normal numbers of the stream, in single precision.

        The caller may overwrite them: no number is returned twice.
        """
        if self._generator is None:
            self._generator = _make_generator(self._key)
        left = self._left.shape[0]
        if count > left:
            # torch draws in blocks of sixteen; whole blocks do not depend on how draws are grouped.
            size = -(-max(count - left, SMALLEST_DRAW) // 16) * 16
            fresh = torch.empty(left + size)
            fresh[:left] = self._left
            fresh[left:].normal_(generator=self._generator)
            self._left = fresh
        draws, self._left = self._left[:count], self._left[count:]
        return draws

    def coins(self, count: int, rate: float) -> Tensor:
        """Draw booleans, from a separate stream."""
        if self._coins is None:
            seed = np.frombuffer(shake_128(self._key + b"coins").digest(32), dtype=np.uint32)
            self._coins = np.random.default_rng(seed)
        return torch.from_numpy(self._coins.random(count) < rate)


# How torch saves its Mersenne twister: a header, then 624 words of state, each in eight bytes.
_WORDS, _HEADER = 624, 24
_SEEDED = torch.Generator().manual_seed(0).get_state().numpy()


class _State(threading.local):
    """A generator state to be filled in and copied, one for each thread."""

    def __init__(self) -> None:
        state = _SEEDED.copy()
        self.words = state[_HEADER : _HEADER + 8 * _WORDS].view(np.uint64)
        self.whole = torch.from_numpy(state)


_state = _State()


def _make_generator(key: bytes) -> torch.Generator:
    """Make a generator whose whole state is a hash of the key.

    torch seeds its CPU generator with 32 bits, so in a simulation of a few hundred thousand
    participations some seeds would collide.
    """
    _state.words[:] = np.frombuffer(shake_128(key).digest(4 * _WORDS), dtype=np.uint32)
    generator = torch.Generator()
    generator.set_state(_state.whole)
    return generator


class SystemNoise:
    """Noise from the operating system's entropy, for a real federation; it cannot be repeated.

    >>> SystemNoise().integers(3, 1000.0).shape
    torch.Size([3])
    """

    def integers(self, count: int, scale: float) -> Tensor:
        """Draw round(scale·Z), exactly."""
        return torch.from_numpy(sample_rounded_gaussian(count, scale))

    def coins(self, count: int, rate: float) -> Tensor:
        """Draw booleans, whose probability never exceeds the rate."""
        return torch.from_numpy(sample_coins(count, rate))
