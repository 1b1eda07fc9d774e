"""``pacdp tune``: choose hyperparameters on public data alone."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from pacdp.cli import options, rendering
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json, print_rows, print_table
from pacdp.cli.progress import show_progress
from pacdp.storage import require_new_file

if TYPE_CHECKING:
    from pacdp.tuning import TunedConfiguration


def tune_command(
    name: Name,
    method: Annotated[
        str | None, Option(metavar="NAME", help="Method to use instead of the experiment's.")
    ] = None,
    out: Annotated[Path, Option(help="File to write; must not exist yet.")] = Path("tuned.json"),
    seeds: Annotated[int, Option(help="Training runs per candidate.")] = 5,
    sweeps: Annotated[int, Option(help="Maximum passes over the search space.")] = 2,
    profile: Profile = None,
    changes: Changes = None,
    as_json: options.Json = False,
) -> None:
    """Choose a method's hyperparameters, curve F and client weights on public data."""
    from pacdp import api
    from pacdp.validation import require_count

    require_new_file(out)
    require_count("--seeds", seeds)
    require_count("--sweeps", sweeps)
    with show_progress() as progress:
        tuned = api.tune(
            name,
            method=method,
            seeds=seeds,
            sweeps=sweeps,
            profile=profile,
            changes=changes or [],
            progress=progress,
        )
    tuned.save(out)
    if as_json:
        print_json({"file": str(out), **tuned.summary})
        return
    _print_tuned(tuned)
    given = {"--configuration": out, "--profile": profile, "--set": changes}
    command = shlex.join(options.command_line("run", name, given))
    typer.echo(f"configuration: {out}\nuse it: {command}")


def _print_tuned(tuned: "TunedConfiguration") -> None:
    by_setting: dict[str, list[Mapping[str, Any]]] = {}
    for step in tuned.why:
        by_setting.setdefault(step["setting"], []).append(step)
    print_table(
        f"{tuned.experiment}, {tuned.method}: chosen on public data",
        ("setting", "was", "chosen", "gain ± s.e."),
        [
            (setting, _value(steps[0]["before"]), _value(steps[-1]["after"]), _gain(tuned, steps))
            for setting, steps in by_setting.items()
        ],
        text_columns=1,
        caption="gain ± its standard error, over what stood before the last move, seed by seed; "
        "a setting moves only where that is more than the error",
    )
    proxy = tuned.proxy
    rows = {
        "expected": f"{rendering.expected(tuned.summary['expected'])} on the proxy, over "
        f"{len(tuned.expected.seeds)} fresh seeds",
        "promised": str(tuned.privacy),
        "trainings": str(tuned.trainings),
        "proxy": f"{proxy['name']}, {proxy['made_by']}: {proxy['source']}",
        "sha-256": proxy["sha256"],
    }
    if "representation" in proxy:
        rows["learned from"] = f"{proxy['representation']}, for the representation"
    print_rows(rows | {"track": tuned.track})


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _gain(tuned: "TunedConfiguration", steps: list[Mapping[str, Any]]) -> str:
    """Return what the last move of a setting gained, or a dash if it never moved."""
    moves = [
        trial
        for step in steps
        for trial in step["tried"]
        if step["after"] != step["before"] and trial["value"] == step["after"]
    ]
    if not moves:
        return "–"
    gain, error = moves[-1]["gain"], moves[-1]["error"]
    percent, sign = (100, " %") if tuned.expected.metric == "accuracy" else (1, "")
    return f"{percent * gain:.2g} ± {percent * error:.1g}{sign}"
