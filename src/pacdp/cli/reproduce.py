"""``pacdp reproduce``: the paper's experiments from one command."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pacdp.cli.options import flag
from pacdp.cli.progress import show_progress
from pacdp.errors import InputError


def reproduce_command(
    names: Annotated[
        list[str],
        Argument(metavar="NAME...|all", help="Names of studies, 'all', or 'list' to list them."),
    ],
    profile: Annotated[
        str,
        Option(
            metavar="smoke|desk|full",
            help="Size of the experiments: they take seconds, minutes or days.",
        ),
    ] = "desk",
    out: Annotated[Path, Option(help="Folder for runs, tables, figures and reports.")] = Path(
        "pacdp-results"
    ),
    resume: Annotated[
        bool, flag("--resume", "Continue in the --out folder; run only what is missing.")
    ] = False,
    jobs: Annotated[
        int, Option(metavar="N", help="Number of processes, which share the cores.")
    ] = 1,
    docs: Annotated[
        Path | None, Option(help="Also copy the results page and its figures into this folder.")
    ] = None,
) -> None:
    """Run the paper's experiments and write tables, figures and reports."""
    from pacdp.paper.studies.artifact_store import ArtifactStore
    from pacdp.paper.studies.reproduce import reproduce
    from pacdp.paper.studies.results import copy_results, write_results
    from pacdp.paper.studies.study import list_studies, read_study
    from pacdp.validation import require_count

    if names == ["list"]:
        for name in list_studies():
            typer.echo(f"{name:24}{read_study(name, profile='desk').title}")
        return
    if docs is not None and not docs.is_dir():
        raise InputError(f"--docs {docs}: is no folder")
    chosen = list_studies() if "all" in names else list(dict.fromkeys(names))
    wanted = [read_study(name, profile=profile) for name in chosen]
    require_count("--jobs", jobs)
    store = ArtifactStore(out, profile=profile, resume=resume)
    with show_progress() as progress:
        reproduce(wanted, store, jobs=jobs, progress=progress)
    page = write_results(store, list_studies())
    if docs is not None:
        copy_results(store, docs)
    for study in wanted:
        report = out / "reports" / f"{study.name}.html"
        typer.echo(f"{study.name:24}{report if report.is_file() else ''}")
    typer.echo(f"tables and figures: {page}")
