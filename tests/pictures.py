"""Pictures of the documentation that are computed.

``python -m tests.pictures`` draws them anew into docs/pictures.
"""

from pacdp.report.figures.features import figure
from tests.documentation import ROOT

if __name__ == "__main__":
    path = ROOT / "docs" / "pictures" / "representations.png"
    # No name of a program and no date: the same picture is the same file.
    figure().savefig(path, dpi=100, metadata={"Software": None})
