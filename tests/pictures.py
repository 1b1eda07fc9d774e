"""Pictures of the documentation that are computed.

``python -m tests.pictures`` draws them anew into docs/pictures.
"""

import numpy as np
from matplotlib.figure import Figure

from pacdp.data import load_dataset
from pacdp.data.strokes import draw_scribbles
from pacdp.features.synthetic import Images, draw_dead_leaves
from tests.documentation import ROOT

_ROWS, _COLUMNS, _GAP = 2, 16, 2


def draw_generated_images(*, seed: int = 0) -> Figure:
    """Draw examples of scribbles, dead leaves and generated digits."""
    number = _ROWS * _COLUMNS
    digits = load_dataset("strokes", records=5 * number, seed=seed).train
    kinds = {
        "Scribbles: for learning grey features without public records": draw_scribbles(
            number, seed
        ),
        "Dead leaves: for learning colour features without public records": draw_dead_leaves(
            number, (32, 32), seed=seed
        ),
        "Strokes: generated digits, part of the public data handwriting": digits.features[:number],
    }
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for panel, (title, images) in zip(figure.subplots(3, 1), kinds.items(), strict=True):
        panel.imshow(_tile(images), interpolation="nearest")
        panel.set_title(title, loc="left", fontsize="medium")
        panel.set_axis_off()
    return figure


def _tile(images: Images) -> Images:
    """Arrange images in a grid on white."""
    _, channels, high, wide = images.shape
    coloured = np.broadcast_to(images, (len(images), 3, high, wide)) if channels == 1 else images
    cells = np.pad(
        coloured.transpose(0, 2, 3, 1),
        ((0, 0), (_GAP, 0), (_GAP, 0), (0, 0)),
        constant_values=255,
    )
    rows = cells.reshape(_ROWS, _COLUMNS, *cells.shape[1:]).swapaxes(1, 2)
    return rows.reshape(_ROWS * (high + _GAP), _COLUMNS * (wide + _GAP), 3)


if __name__ == "__main__":
    path = ROOT / "docs" / "pictures" / "representations.png"
    # No name of a program and no date: the same picture is the same file.
    draw_generated_images().savefig(path, dpi=100, metadata={"Software": None})
