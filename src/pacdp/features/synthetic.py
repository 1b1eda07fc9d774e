"""Generated images from which filters and directions are learned where no public record may be.

Colour: dead leaves (Lee, Mumford and Huang, International Journal of Computer Vision 41, 2001),
discs of all sizes that cover one another, whose patches and edges are spread as in photographs.
Grey: strokes of a pen that mean nothing.
"""

import numpy as np
from numpy.typing import NDArray

from pacdp.data.strokes import draw_scribbles
from pacdp.errors import InputError

Images = NDArray[np.uint8]

_AT_ONCE = 256
_LEAVES = 100
# Radii as shares of a side; their density falls with the third power, as in photographs.
_SMALLEST, _LARGEST = 0.02, 0.5
_BLUE, _RED = 0.12, 0.05


def generated(shape: tuple[int, ...], *, records: int, seed: int) -> Images:
    """Images of a shape, from a seed: scribbles in grey, dead leaves in colour.

    >>> generated((3, 32, 32), records=2, seed=0).shape
    (2, 3, 32, 32)
    """
    if len(shape) != 3 or shape[0] not in (1, 3) or (shape[0] == 1 and shape[1:] != (28, 28)):
        raise InputError(
            f"generated images: there are none of shape {shape}, only (1, 28, 28) and colour"
        )
    if shape[0] == 1:
        return draw_scribbles(records, seed)
    return draw_dead_leaves(records, shape[1:], seed=seed)


def draw_dead_leaves(records: int, sides: tuple[int, ...], *, seed: int) -> Images:
    """Discs of random colours that cover one another.

    >>> draw_dead_leaves(1, (16, 16), seed=0).dtype
    dtype('uint8')
    """
    random = np.random.default_rng([seed, 11])
    parts = [
        _covered(min(_AT_ONCE, records - start), sides, random)
        for start in range(0, records, _AT_ONCE)
    ]
    return np.concatenate(parts)


def _covered(count: int, sides: tuple[int, ...], random: np.random.Generator) -> Images:
    # Twice as fine, and averaged: edges fall between pixels.
    high, wide = (2 * side for side in sides)
    image = np.empty((count, high, wide, 3), np.float32)
    image[:] = _colours(count, random)[:, None, None]
    down, across = np.arange(high)[:, None] + 0.5, np.arange(wide)[None, :] + 0.5
    inverse = random.uniform(_LARGEST**-2.0, _SMALLEST**-2.0, size=(_LEAVES, count))
    radii = max(high, wide) / np.sqrt(inverse)
    # Large leaves lie below: the small ones would be covered, and nothing fine would be left.
    radii = -np.sort(-radii, axis=0)
    for size in radii:
        middle = random.uniform(-0.1, 1.1, size=(2, count)) * np.array([[high], [wide]])
        apart = (down - middle[0][:, None, None]) ** 2 + (across - middle[1][:, None, None]) ** 2
        inside = apart < (size**2)[:, None, None]
        image = np.where(inside[..., None], _colours(count, random)[:, None, None], image)
    fine = image.reshape(count, high // 2, 2, wide // 2, 2, 3).mean((2, 4))
    return np.round(255 * fine.transpose(0, 3, 1, 2)).astype(np.uint8)


def _colours(count: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Mostly light and dark, less blue against yellow, and least red against green.

    So photographs are (Ruderman, Cronin and Chiao, Journal of the Optical Society of America A 15,
    1998).
    """
    light = random.random((count, 1))
    blue = random.normal(scale=_BLUE, size=(count, 1)) * np.array([[-0.5, -0.5, 1.0]])
    red = random.normal(scale=_RED, size=(count, 1)) * np.array([[1.0, -1.0, 0.0]])
    return np.clip(light + blue + red, 0, 1).astype(np.float32)
