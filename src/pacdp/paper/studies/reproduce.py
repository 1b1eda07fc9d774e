"""A study from beginning to end: run what is missing, then write its tables, figure and report."""

from collections.abc import Sequence

from matplotlib import rc_context

from pacdp.paper.studies.ablation import ablation, ablation_portions
from pacdp.paper.studies.artifact_store import Shelf
from pacdp.paper.studies.contest import contest, contest_portions
from pacdp.paper.studies.curves import curves, curves_portions
from pacdp.paper.studies.headline import headline, headline_portions
from pacdp.paper.studies.overhead import overhead, overhead_portions
from pacdp.paper.studies.process_pool import make_at_once
from pacdp.paper.studies.section import SMOKE, Observer, Part, Portion, quiet
from pacdp.paper.studies.study import Study
from pacdp.paper.studies.weights import weights, weights_portions
from pacdp.storage import write_atomically

_KINDS = {
    "contest": (contest_portions, contest),
    "curves": (curves_portions, curves),
    "overhead": (overhead_portions, overhead),
    "headline": (headline_portions, headline),
    "weights": (weights_portions, weights),
    "ablation": (ablation_portions, ablation),
}


def portions(study: Study) -> list[Portion]:
    """What a study is made of, each of which can be made on its own.

    >>> from pacdp.paper.studies.study import read_study
    >>> [one.words for one in portions(read_study("curves", profile="desk"))][:2]
    ['curve of mnist', 'curve of cifar10']
    """
    split, _ = _KINDS[study.kind]
    return split(study)


def reproduce(
    studies: Sequence[Study], shelf: Shelf, *, jobs: int = 1, observe: Observer = quiet
) -> None:
    """Run what is missing of some studies, so many portions at once, and write what came of it."""
    # Seconds are measured while nothing else runs.
    ahead = [study for study in studies if jobs > 1 and study.kind != "overhead"]
    split = [one for study in ahead for one in portions(study)]
    if split:
        make_at_once(split, shelf, jobs=jobs, observe=observe)
    for study in studies:
        # What helpers have made has been told.
        _write(study, shelf, quiet if study in ahead else observe)


def _write(study: Study, shelf: Shelf, observe: Observer) -> None:
    """The tables, the figure and the report of a study."""
    _, run = _KINDS[study.kind]
    made = run(study, shelf, observe)
    folder = shelf.folder / "results"
    write_atomically(folder / f"{study.name}.csv", made.csv)
    if made.figure is not None:
        # Text stays text, and the same numbers give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
            made.figure.savefig(folder / f"{study.name}.svg", metadata={"Date": None})
        made.figure.savefig(folder / f"{study.name}.png", dpi=120)
    if made.report is not None:
        write_atomically(shelf.folder / "reports" / f"{study.name}.html", made.report)
    # Last: where the text is, the rest is too.
    write_atomically(folder / f"{study.name}.md", _section(made, shelf.profile))


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
