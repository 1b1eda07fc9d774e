"""Samples of the generated images, none of which is anybody's record."""

import numpy as np
from matplotlib.figure import Figure

from pacdp.data import load
from pacdp.data.strokes import scribbles
from pacdp.features.synthetic import Images, dead_leaves

_ROWS, _COLUMNS, _GAP = 2, 16, 2


def draw_synthetic_images(*, seed: int = 0) -> Figure:
    """Draw a contact sheet of scribbles, dead leaves and digit strokes.

    >>> [panel.get_title(loc="left")[:11] for panel in draw_synthetic_images().axes]
    ['Scribbles: ', 'Dead leaves', 'Strokes: di']
    """
    number = _ROWS * _COLUMNS
    digits = load("strokes", records=5 * number, seed=seed).train
    kinds = {
        "Scribbles: what grey maps learn from without public records": scribbles(number, seed),
        "Dead leaves: what colour maps learn from without public records": dead_leaves(
            number, (32, 32), seed=seed
        ),
        "Strokes: digits that nobody wrote, in the public pool of handwriting": digits.features[
            :number
        ],
    }
    picture = Figure(figsize=(8, 4.2), layout="constrained")
    for panel, (title, images) in zip(picture.subplots(3, 1), kinds.items(), strict=True):
        panel.imshow(_tile(images), interpolation="nearest")
        panel.set_title(title, loc="left", fontsize="medium")
        panel.set_axis_off()
    return picture


def _tile(images: Images) -> Images:
    """Tile images on white."""
    _, channels, high, wide = images.shape
    coloured = np.broadcast_to(images, (len(images), 3, high, wide)) if channels == 1 else images
    cells = np.pad(
        coloured.transpose(0, 2, 3, 1),
        ((0, 0), (_GAP, 0), (_GAP, 0), (0, 0)),
        constant_values=255,
    )
    rows = cells.reshape(_ROWS, _COLUMNS, *cells.shape[1:]).swapaxes(1, 2)
    return rows.reshape(_ROWS * (high + _GAP), _COLUMNS * (wide + _GAP), 3)
