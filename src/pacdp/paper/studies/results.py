"""The results page: every study that is whole, the headline first."""

from collections.abc import Sequence
from pathlib import Path

from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.storage import write_atomically

_HEAD = """# Results

Written by `pacdp reproduce`, profile `{profile}`, and not by hand. What it means, and which
readings of the paper give its numbers: [Reproduction](reproduction.md).

In the paper's own studies every row stands twice. `as-published`: ε is the budget of each release
alone, with the published noise z = √(2 ln(1.25/δ))/ε where all budgets are below 1, as its proof
needs, and the exact noise of a release elsewhere; for NbAFL its published formula. `certified`: ε
is the whole run's, exact, for every client. Beside both stands what the whole run really
certifies, planned and realised. rPDP-FL accounts for the whole run itself, and FedAvg has no ε:
their two rows are the same. Where more than three ε differ, the least, the median and the most over
clients and seeds stand there. The published formula asks for more noise than one release needs, so
very few cost less than ε together.

Accuracy is that of the last round, never of the best one, on test records, which are covered by
no ε; *clients* is what each of them sees. Points are differences of percentages, PAC-DP minus the
other, seed by seed; *wins* and *loses* hold at 95 % by Student's t, one by one: of twenty such
words one may be luck. F and the *best* fixed C are chosen on the proxy; the other rivals run with
their published settings, untuned.
"""


def write_results(store: ArtifactStore, order: Sequence[str]) -> Path:
    """The page of all studies that are in the folder."""
    folder = store.folder / "results"
    there = [name for name in order if (folder / f"{name}.md").is_file()]
    missing = [name for name in order if name not in there]
    parts = [_HEAD.format(profile=store.profile)]
    if missing:
        parts.append(f"Not run in this size: {', '.join(missing)}.\n")
    parts += [(folder / f"{name}.md").read_text() for name in there]
    page = store.folder / "results.md"
    write_atomically(page, "\n".join(parts))
    return page


def copy_results(store: ArtifactStore, docs: Path) -> None:
    """Bring the page, its figures and its tables to where documentation is built from."""
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results.md").write_text((store.folder / "results.md").read_text())
    for file in sorted((store.folder / "results").iterdir()):
        if file.suffix in (".svg", ".csv"):
            (docs / "results" / file.name).write_bytes(file.read_bytes())
