"""Reproduce studies: run what is missing, then write tables, figures and reports."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import rc_context

from pacdp.paper.studies.ablation import build_ablation, split_ablation
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.comparison import build_comparison, split_comparison
from pacdp.paper.studies.curves import build_curves, split_curves
from pacdp.paper.studies.headline import build_headline, split_headline
from pacdp.paper.studies.overhead import build_overhead, split_overhead
from pacdp.paper.studies.process_pool import run_in_parallel
from pacdp.paper.studies.section import SMOKE_NOTE, Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study
from pacdp.paper.studies.weights import build_weights, split_weights
from pacdp.progress import Progress, ignore_progress
from pacdp.storage import write_atomically

# By kind: lists the work items of a study, and builds its section from their results.
_KINDS: dict[
    str, tuple[Callable[[Study], list[WorkItem]], Callable[[Study, str, Any], Section]]
] = {
    "comparison": (split_comparison, build_comparison),
    "curves": (split_curves, build_curves),
    "overhead": (split_overhead, build_overhead),
    "headline": (split_headline, build_headline),
    "weights": (split_weights, build_weights),
    "ablation": (split_ablation, build_ablation),
}


def list_work(study: Study) -> list[WorkItem]:
    """List the parts of a study that can be computed independently.

    >>> from pacdp.paper.studies.study import read_study
    >>> [item.note for item in list_work(read_study("curves", profile="desk"))][:2]
    ['curve of mnist', 'curve of cifar10']
    """
    split, _ = _KINDS[study.kind]
    return split(study)


def reproduce(
    studies: Sequence[Study],
    store: ArtifactStore,
    *,
    jobs: int = 1,
    progress: Progress = ignore_progress,
) -> None:
    """Run what is missing of some studies in ``jobs`` processes, and write their results."""
    work = {study.name: list_work(study) for study in studies}
    total = sum(item.steps for items in work.values() for item in items)
    counter = StepCounter(total, progress)
    # Running times are measured while nothing else runs.
    parallel = [study for study in studies if jobs > 1 and study.kind != "overhead"]
    items = [item for study in parallel for item in work[study.name]]
    if items:
        run_in_parallel(items, store, jobs=jobs, counter=counter)
    for study in studies:
        # The steps of parallel items have been counted.
        _write(study, store, StepCounter() if study in parallel else counter)


def _write(study: Study, store: ArtifactStore, counter: StepCounter) -> None:
    """Write the table, the figure, the report and the text of a study."""
    _, build = _KINDS[study.kind]
    results = [item.run(store, counter) for item in list_work(study)]
    section = build(study, store.profile, results)
    folder = store.folder / "results"
    write_atomically(folder / f"{study.name}.csv", section.csv)
    if section.figure is not None:
        # Text stays text, and the same numbers give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": study.name}):
            section.figure.savefig(folder / f"{study.name}.svg", metadata={"Date": None})
        section.figure.savefig(folder / f"{study.name}.png", dpi=120)
    if section.report is not None:
        write_atomically(store.folder / "reports" / f"{study.name}.html", section.report)
    # Written last: if the text exists, so does everything else.
    write_atomically(folder / f"{study.name}.md", _format_section(section, store.profile))


def _format_section(section: Section, profile: str) -> str:
    study = section.study
    parts = [
        f"## {study.title}",
        f"`{study.name}`. The paper: {study.paper.where}. {study.paper.said}".rstrip(),
        f"**{SMOKE_NOTE}**" if profile == "smoke" else "",
        study.note,
        section.text,
        f"![{study.title}](results/{study.name}.svg)" if section.figure is not None else "",
        f"[All values as CSV](results/{study.name}.csv)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
