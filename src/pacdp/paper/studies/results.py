"""The results page: every complete study, the headline first."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.storage import write_atomically


def write_results(store: ArtifactStore, order: Sequence[str]) -> Path:
    """Write the page of all studies that are in the folder, and return its path."""
    introduction = resources.files("pacdp.paper.studies").joinpath("files", "results.md")
    parts = [Template(introduction.read_text("utf-8")).substitute(profile=store.profile)]
    files = {name: store.folder / "results" / f"{name}.md" for name in order}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        parts.append(f"Not run in this profile: {', '.join(missing)}.\n")
    parts += [file.read_text() for name, file in files.items() if name not in missing]
    page = store.folder / "results.md"
    write_atomically(page, "\n".join(parts))
    return page


def copy_results(store: ArtifactStore, docs: Path) -> None:
    """Copy the page, its figures and its tables to the sources of the documentation."""
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results.md").write_text((store.folder / "results.md").read_text())
    for file in sorted((store.folder / "results").iterdir()):
        if file.suffix in (".svg", ".csv"):
            (docs / "results" / file.name).write_bytes(file.read_bytes())
