"""Generated images, from which extractors learn where no public records may be used.

Colour: dead leaves (Lee, Mumford and Huang, International Journal of Computer Vision 41, 2001),
discs of all sizes that occlude one another, whose patches and edges are distributed as in
photographs. Grey: random strokes of a pen.
"""

import numpy as np
from numpy.typing import NDArray

from pacdp.data.strokes import draw_scribbles
from pacdp.errors import InputError

Images = NDArray[np.uint8]

_BATCH = 256
_LEAVES = 100
# Radii as shares of a side; their density decreases with the third power, as in photographs.
_SMALLEST, _LARGEST = 0.02, 0.5
_BLUE, _RED = 0.12, 0.05


def generate_images(shape: tuple[int, ...], *, records: int, seed: int) -> Images:
    """Generate images of a shape: scribbles in grey, dead leaves in colour.

    >>> generate_images((3, 32, 32), records=2, seed=0).shape
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
    """Draw discs of random colours that occlude one another.

    >>> draw_dead_leaves(1, (16, 16), seed=0).dtype
    dtype('uint8')
    """
    random = np.random.default_rng([seed, 11])
    parts = [
        _draw_discs(min(_BATCH, records - start), sides, random)
        for start in range(0, records, _BATCH)
    ]
    return np.concatenate(parts)


def _draw_discs(count: int, sides: tuple[int, ...], random: np.random.Generator) -> Images:
    # Drawn at twice the resolution and averaged, so that edges are antialiased.
    high, wide = (2 * side for side in sides)
    image = np.empty((count, high, wide, 3), np.float32)
    image[:] = _draw_colours(count, random)[:, None, None]
    down, across = np.arange(high)[:, None] + 0.5, np.arange(wide)[None, :] + 0.5
    inverse = random.uniform(_LARGEST**-2.0, _SMALLEST**-2.0, size=(_LEAVES, count))
    radii = max(high, wide) / np.sqrt(inverse)
    # Large discs are drawn first; they would otherwise hide the small ones.
    radii = -np.sort(-radii, axis=0)
    for size in radii:
        middle = random.uniform(-0.1, 1.1, size=(2, count)) * np.array([[high], [wide]])
        apart = (down - middle[0][:, None, None]) ** 2 + (across - middle[1][:, None, None]) ** 2
        inside = apart < (size**2)[:, None, None]
        image = np.where(inside[..., None], _draw_colours(count, random)[:, None, None], image)
    fine = image.reshape(count, high // 2, 2, wide // 2, 2, 3).mean((2, 4))
    return np.round(255 * fine.transpose(0, 3, 1, 2)).astype(np.uint8)


def _draw_colours(count: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Draw colours that vary most in lightness, less in blue-yellow and least in red-green.

    This is the distribution in photographs (Ruderman, Cronin and Chiao, Journal of the Optical
    Society of America A 15, 1998).
    """
    light = random.random((count, 1))
    blue = random.normal(scale=_BLUE, size=(count, 1)) * np.array([[-0.5, -0.5, 1.0]])
    red = random.normal(scale=_RED, size=(count, 1)) * np.array([[1.0, -1.0, 0.0]])
    return np.clip(light + blue + red, 0, 1).astype(np.float32)
