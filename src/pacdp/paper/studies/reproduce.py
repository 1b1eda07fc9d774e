"""A study from beginning to end: run what is missing, then write its tables, figure and report."""

from collections.abc import Sequence

from matplotlib import rc_context

from pacdp.paper.studies.ablation import build_ablation, split_ablation
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.comparison import build_comparison, split_comparison
from pacdp.paper.studies.curves import build_curves, split_curves
from pacdp.paper.studies.headline import build_headline, split_headline
from pacdp.paper.studies.overhead import build_overhead, split_overhead
from pacdp.paper.studies.process_pool import run_in_parallel
from pacdp.paper.studies.section import SMOKE_NOTE, Observer, Section, WorkItem, quiet
from pacdp.paper.studies.study import Study
from pacdp.paper.studies.weights import build_weights, split_weights
from pacdp.storage import write_atomically

_KINDS = {
    "comparison": (split_comparison, build_comparison),
    "curves": (split_curves, build_curves),
    "overhead": (split_overhead, build_overhead),
    "headline": (split_headline, build_headline),
    "weights": (split_weights, build_weights),
    "ablation": (split_ablation, build_ablation),
}


def list_work(study: Study) -> list[WorkItem]:
    """What a study is made of, each of which can be made on its own.

    >>> from pacdp.paper.studies.study import read_study
    >>> [one.words for one in list_work(read_study("curves", profile="desk"))][:2]
    ['curve of mnist', 'curve of cifar10']
    """
    split, _ = _KINDS[study.kind]
    return split(study)


def reproduce(
    studies: Sequence[Study], store: ArtifactStore, *, jobs: int = 1, observe: Observer = quiet
) -> None:
    """Run what is missing of some studies, so many portions at once, and write what came of it."""
    # Seconds are measured while nothing else runs.
    ahead = [study for study in studies if jobs > 1 and study.kind != "overhead"]
    split = [one for study in ahead for one in list_work(study)]
    if split:
        run_in_parallel(split, store, jobs=jobs, observe=observe)
    for study in studies:
        # What helpers have made has been told.
        _write(study, store, quiet if study in ahead else observe)


def _write(study: Study, store: ArtifactStore, observe: Observer) -> None:
    """The tables, the figure and the report of a study."""
    _, run = _KINDS[study.kind]
    made = run(study, store, observe)
    folder = store.folder / "results"
    write_atomically(folder / f"{study.name}.csv", made.csv)
    if made.figure is not None:
        # Text stays text, and the same numbers give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
            made.figure.savefig(folder / f"{study.name}.svg", metadata={"Date": None})
        made.figure.savefig(folder / f"{study.name}.png", dpi=120)
    if made.report is not None:
        write_atomically(store.folder / "reports" / f"{study.name}.html", made.report)
    # Last: where the text is, the rest is too.
    write_atomically(folder / f"{study.name}.md", _section(made, store.profile))


def _section(made: Section, profile: str) -> str:
    study = made.study
    paper = f"`{study.name}`. The paper: {study.paper.where}. {study.paper.said}".rstrip()
    parts = [f"## {study.title}", paper]
    parts += [f"**{SMOKE_NOTE}**"] if profile == "smoke" else []
    parts += [study.note] if study.note else []
    parts.append(made.text)
    if made.figure is not None:
        parts.append(f"![{study.title}](results/{study.name}.svg)")
    parts.append(f"[All of it as CSV](results/{study.name}.csv)")
    return "\n\n".join(parts) + "\n"
