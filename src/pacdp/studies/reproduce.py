"""A study from beginning to end: run what is missing, then write its tables, figure and report."""

from matplotlib import rc_context

from pacdp.files import write_whole
from pacdp.studies.ablation import ablation, variations
from pacdp.studies.cells import cells
from pacdp.studies.contest import contest
from pacdp.studies.curves import curves
from pacdp.studies.headline import headline, lines
from pacdp.studies.overhead import overhead, steps
from pacdp.studies.part import SMOKE, Observer, Part
from pacdp.studies.shelf import Shelf
from pacdp.studies.study import Study
from pacdp.studies.weights import weights

_KINDS = {
    "contest": contest,
    "curves": curves,
    "overhead": overhead,
    "headline": headline,
    "weights": weights,
    "ablation": ablation,
}


def amount(study: Study) -> int:
    """How many steps a study takes, for who waits.

    >>> from pacdp.studies.study import read_study
    >>> amount(read_study("curves", profile="desk"))
    5
    """
    if study.kind == "contest":
        return len(cells(study))
    if study.kind == "headline":
        return lines(study)
    if study.kind == "ablation":
        return len(study.entries) * variations()
    if study.kind == "weights":
        return len(study.entries) * len(study.rules)
    return len(study.experiments) if study.kind == "curves" else steps(study)


def reproduce(study: Study, shelf: Shelf, *, observe: Observer = lambda words, steps: None) -> None:
    """Run what is missing of a study, and write its tables, its figure and its report."""
    made = _KINDS[study.kind](study, shelf, observe)
    folder = shelf.folder / "results"
    write_whole(folder / f"{study.name}.csv", made.csv)
    if made.figure is not None:
        # Text stays text, and the same numbers give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
            made.figure.savefig(folder / f"{study.name}.svg", metadata={"Date": None})
        made.figure.savefig(folder / f"{study.name}.png", dpi=120)
    if made.report is not None:
        write_whole(shelf.folder / "reports" / f"{study.name}.html", made.report)
    # Last: where the text is, the rest is too.
    write_whole(folder / f"{study.name}.md", _section(made, shelf.profile))


def _section(made: Part, profile: str) -> str:
    study = made.study
    paper = f"`{study.name}`. The paper: {study.paper.where}. {study.paper.said}".rstrip()
    parts = [f"## {study.title}", paper]
    parts += [f"**{SMOKE}**"] if profile == "smoke" else []
    parts += [study.note] if study.note else []
    parts.append(made.text)
    if made.figure is not None:
        parts.append(f"![{study.title}](results/{study.name}.svg)")
    parts.append(f"[All of it as CSV](results/{study.name}.csv)")
    return "\n\n".join(parts) + "\n"
