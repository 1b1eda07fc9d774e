"""Wavelet scattering of two orders (Bruna and Mallat, IEEE TPAMI 35, 2013).

Moduli of Morlet wavelets at several scales and angles, averaged locally, and the same once more for
each modulus, change little when an image is shifted. Nothing is learned. This is implemented here
because the established library is incompatible with current versions of NumPy and SciPy.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pacdp.errors import InputError
from pacdp.features.base import Extractor
from pacdp.validation import FloatArray

# The finest wavelet's width in pixels, its frequency, and the ratio of its width to its length.
_WIDTH, _FREQUENCY, _SLANT = 0.8, 3 * math.pi / 4, 0.5
_SIDES = 4
"""Averages are taken over a grid of this many cells in each direction."""


class Scattering(Extractor):
    """Local averages of an image, its wavelet moduli and their wavelet moduli.

    >>> Scattering((1, 28, 28)).transform(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1296])
    """

    defaults: ClassVar = {"scales": 2, "directions": 8, "upright": 0}

    def compute(self, images: Tensor) -> Tensor:
        """Return the averages of each image."""
        scales, directions = self.settings["scales"], self.settings["directions"]
        side = max(images.shape[2:])
        size = 2 ** math.ceil(math.log2(side))
        if size < 2 ** (scales + 2):
            raise InputError(
                f"scattering: images of {side} pixels are too small for {scales} scales"
            )
        high, wide = (size - length for length in images.shape[2:])
        if high - high // 2 >= images.shape[2] or wide - wide // 2 >= images.shape[3]:
            raise InputError(
                f"scattering: images of {images.shape[2]} x {images.shape[3]} pixels are too "
                "narrow; a side must be more than a third of the other's next power of two"
            )
        padding = (wide // 2, wide - wide // 2, high // 2, high - high // 2)
        padded = functional.pad(images, padding, mode="reflect") if high or wide else images
        paths = torch.stack(list(_paths(padded, size, scales, directions)), dim=2)
        return functional.adaptive_avg_pool2d(paths.flatten(1, 2), _SIDES).flatten(1)


def _paths(images: Tensor, size: int, scales: int, directions: int) -> Iterator[Tensor]:
    """Yield the averages of the image, of its wavelet moduli, and of their wavelet moduli."""
    wavelets, low_pass = _make_filters(size, scales, directions)
    step = 2**scales

    def average(spectrum: Tensor) -> Tensor:
        # Keeping every step-th pixel is averaging the folds of the spectrum.
        filtered = spectrum * low_pass
        folds = filtered.reshape(*filtered.shape[:-2], step, size // step, step, size // step)
        return torch.fft.ifft2(folds.mean((-4, -2))).real

    spectrum = torch.fft.fft2(images)
    yield average(spectrum)
    for scale, wavelet in wavelets:
        first = torch.fft.fft2(torch.fft.ifft2(spectrum * wavelet).abs())
        yield average(first)
        for coarser, other in wavelets:
            # A modulus varies slowly, so finer scales contain almost nothing.
            if coarser > scale:
                yield average(torch.fft.fft2(torch.fft.ifft2(first * other).abs()))


@lru_cache(maxsize=8)
def _make_filters(
    size: int, scales: int, directions: int
) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """Return the spectra of the wavelets with their scales, and of the low-pass filter."""
    wavelets = [
        (scale, _spectrum(_morlet(size, scale, math.pi * turn / directions)))
        for scale in range(scales)
        for turn in range(directions)
    ]
    down, across = _plane(size)
    wide = _WIDTH * 2 ** (scales - 1)
    blur = _folded(np.exp(-(down**2 + across**2) / (2 * wide**2)), size)
    return wavelets, _spectrum(blur / blur.sum())


def _morlet(size: int, scale: int, angle: float) -> FloatArray:
    """Return a wave under an elongated Gaussian, with mean zero, wrapped around the frame."""
    wide, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    down, across = _plane(size)
    along = math.cos(angle) * across + math.sin(angle) * down
    beside = math.cos(angle) * down - math.sin(angle) * across
    bell = np.exp(-(along**2 + (_SLANT * beside) ** 2) / (2 * wide**2))
    wave = _folded(bell * np.exp(1j * frequency * along), size)
    bell = _folded(bell, size)
    return (wave - wave.sum() / bell.sum() * bell) * (_SLANT / (2 * math.pi * wide**2))


def _plane(size: int) -> tuple[FloatArray, FloatArray]:
    """Return the pixels of the frame and of two frames on each side of it."""
    line = np.arange(-2 * size, 3 * size, dtype=float)
    return line[:, None], line[None, :]


def _folded(values: FloatArray, size: int) -> FloatArray:
    return values.reshape(5, size, 5, size).sum((0, 2))


def _spectrum(values: FloatArray) -> Tensor:
    return torch.from_numpy(np.fft.fft2(values)).to(torch.complex64)
