"""Pictures of the documentation that are computed.

``python -m tests.pictures`` draws them anew into docs/pictures.
"""

from pacdp.reporting.figures.features import draw_generated_images
from tests.documentation import ROOT

if __name__ == "__main__":
    path = ROOT / "docs" / "pictures" / "representations.png"
    # No name of a program and no date: the same picture is the same file.
    draw_generated_images().savefig(path, dpi=100, metadata={"Software": None})
