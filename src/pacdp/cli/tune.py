"""``pacdp tune``: choose hyperparameters on public data alone."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pacdp.cli import options, rendering
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json, print_rows
from pacdp.cli.progress import show_progress

if TYPE_CHECKING:
    from pacdp.tuning import TunedConfiguration


def tune_command(
    name: Name,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Method to use instead of the experiment's."),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write; must not exist yet.")] = Path(
        "tuned.json"
    ),
    seeds: Annotated[int, typer.Option(help="Training runs per candidate.")] = 5,
    sweeps: Annotated[int, typer.Option(help="Maximum passes over the search space.")] = 2,
    profile: Profile = None,
    changes: Changes = None,
    as_json: options.Json = False,
) -> None:
    """Choose a method's hyperparameters, curve F and client weights on public data."""
    from pacdp import api
    from pacdp.validation import require_count

    options.new_file(out)
    require_count("--seeds", seeds)
    require_count("--sweeps", sweeps)
    with show_progress() as progress:
        found = api.tune(
            name,
            method=method,
            seeds=seeds,
            sweeps=sweeps,
            profile=profile,
            changes=changes or [],
            progress=progress,
        )
    found.save(out)
    if as_json:
        print_json({"file": str(out), **found.summary})
        return
    _print(found)
    command = [
        "pacdp",
        "run",
        name,
        "--configuration",
        str(out),
        *options.sizes(profile, changes or []),
    ]
    typer.echo(f"configuration: {out}\nuse it: {shlex.join(command)}")


def _print(found: "TunedConfiguration") -> None:
    table = Table(
        title=f"{found.experiment}, {found.method}: chosen on public data",
        caption="gain ± its standard error, over what stood before the last move, seed by seed; "
        "a setting moves only where that is more than the error",
    )
    table.add_column("setting", no_wrap=True)
    for heading in ("was", "chosen", "gain ± s.e."):
        table.add_column(heading, justify="right")
    for setting, steps in _by_setting(found).items():
        table.add_row(
            setting, _value(steps[0]["before"]), _value(steps[-1]["after"]), _gain(found, steps)
        )
    Console().print(table)
    proxy = found.proxy
    rows = {
        "expected": f"{rendering.expected(found.summary['expected'])} on the proxy, over "
        f"{len(found.expected.seeds)} fresh seeds",
        "promised": str(found.privacy),
        "trainings": str(found.trainings),
        "proxy": f"{proxy['name']}, {proxy['made_by']}: {proxy['source']}",
        "sha-256": proxy["sha256"],
    }
    if "representation" in proxy:
        rows["learned from"] = f"{proxy['representation']}, for the representation"
    print_rows(rows | {"track": found.track})


def _by_setting(found: "TunedConfiguration") -> dict[str, list[Mapping[str, Any]]]:
    """The steps of each setting, one after the other."""
    made: dict[str, list[Mapping[str, Any]]] = {}
    for step in found.why:
        made.setdefault(step["setting"], []).append(step)
    return made


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _gain(found: "TunedConfiguration", steps: list[Mapping[str, Any]]) -> str:
    """What the last move of a setting gained; nothing where it never moved."""
    moves = [
        (step, one)
        for step in steps
        for one in step["tried"]
        if step["after"] != step["before"] and one["value"] == step["after"]
    ]
    if not moves:
        return "–"
    one = moves[-1][1]
    percent, sign = (100, " %") if found.expected.metric == "accuracy" else (1, "")
    return f"{percent * one['gain']:.2g} ± {percent * one['error']:.1g}{sign}"
