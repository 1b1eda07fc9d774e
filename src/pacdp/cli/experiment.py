"""``pacdp run`` and ``pacdp compare``."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from pacdp import formatting
from pacdp.cli import options, rendering
from pacdp.cli.chosen import (
    PUBLISHED,
    MethodName,
    PlanName,
    Seed,
    method_of,
    missing_curve,
    planned,
    seed_of,
    tuned_plan,
)
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json
from pacdp.cli.progress import bar, making, waiting
from pacdp.cli.report import write_report
from pacdp.errors import InputError
from pacdp.stats import SampleStats
from pacdp.validation import count

if TYPE_CHECKING:
    from pacdp.experiments import Prepared
    from pacdp.federation import RoundResult
    from pacdp.tuning import Tuned


def run_command(
    name: Name,
    method: MethodName = None,
    plan: PlanName = PUBLISHED,
    profile: Profile = None,
    seed: Seed = 0,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run's files.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a stopped run in the --out folder.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write TensorBoard events into this folder.")
    ] = None,
    device: options.Device = "cpu",
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|stacked|threaded|serial",
            help="How a round is computed; serial names the client where something breaks.",
        ),
    ] = "auto",
    as_json: options.Json = False,
) -> None:
    """Train, and say what came of it: accuracy, and each client's certified ε."""
    from pacdp.experiments import RunFolder, RunResult, prepare
    from pacdp.experiments.execute import execute, refuse_engine

    experiment = planned(name, plan=plan, method=method, profile=profile, changes=changes or [])
    if resume and out is None:
        raise InputError("--resume: needs --out, the folder of the stopped run")
    kept_curve = out / "curve.json" if resume and out is not None else None
    curve = missing_curve(experiment, [method], kept=kept_curve, seed=seed_of(seed))
    chosen = method_of(experiment, method, curve)
    write_events = _events(tensorboard)
    with waiting() as watch:
        prepared = prepare(
            experiment, method=chosen, seed=seed, device=options.device(device), observe=watch
        )
    refuse_engine(prepared, engine, device=device)
    folder = None if out is None else RunFolder(out, prepared, resume=resume)
    if folder is not None and curve is not None:
        curve.save(folder.path / "curve.json")
    with _rounds(f"{experiment.name}, {chosen.name}", prepared.plan.rounds) as advance:

        def observe(row: "RoundResult") -> None:
            advance(row)
            write_events(row)
            if folder is not None:
                folder.add_round(row)

        kept = None if folder is None else folder.checkpoint
        ended = execute(
            prepared,
            observe=observe,
            checkpoint=kept,
            device=device,
            engine=engine,
        )
    result = RunResult.of(prepared, ended, profile=profile)
    if folder is not None:
        folder.finish(result)
        write_report(
            folder.path / "report.html",
            {result.method: [result]},
            folders=[folder.path],
            command=_again(name, method, plan, profile, seed, changes or []),
        )
    if as_json:
        print_json(result.to_json())
        return
    rendering.print_result(result)
    if out is not None:
        typer.echo(f"run folder: {out}\nreport: {out / 'report.html'}")


def _again(
    name: str, method: str | None, plan: str, profile: str | None, seed: int, changes: list[str]
) -> list[str]:
    """The command that trains the same once more."""
    chosen = [] if method is None else ["--method", method]
    chosen += [] if plan == PUBLISHED else ["--plan", plan]
    return ["pacdp", "run", name, *chosen, *options.sizes(profile, changes), "--seed", str(seed)]


def compare_command(
    name: Name,
    methods: Annotated[
        str, typer.Option(help="Names with commas, as pac-dp,fixed:clipping_bound=5,fedavg.")
    ] = "pac-dp,fixed,dp-fedavg,fedavg",
    plans: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            metavar="published|FILE",
            help="What pacdp tune has chosen for one of them; may be given several times.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3,
    profile: Profile = None,
    changes: Changes = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page: a new HTML file.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare methods under the same budgets: one table, mean ± standard deviation over seeds."""
    from pacdp.experiments import prepare, read_experiment
    from pacdp.experiments.execute import compare
    from pacdp.experiments.results import collect_epsilons
    from pacdp.tuning import with_plan

    number = int(count("seeds", seeds))
    names = [part.strip() for part in methods.split(",") if part.strip()]
    if not names or len(set(names)) != len(names):
        raise InputError(f"--methods {methods!r}: must be different names with commas between")
    files = _plan_files(plans or [], names, changes or [])
    # Tuned plans bring their own curves; one that the file names may not be there.
    experiment = read_experiment(
        name, profile=profile, changes=changes or [], curves=len(files) < len(names)
    )
    under = {
        method: with_plan(experiment, files[method][1]) if method in files else experiment
        for method in names
    }
    if report is not None:
        options.new_file(report)
    curve = missing_curve(experiment, [method for method in names if method not in files])
    made = {method: method_of(under[method], method, curve) for method in names}
    with bar("comparing", len(names) * number) as (shown, task):
        watch = making(shown)

        def prepared(method: str, seed: int) -> "Prepared":
            return prepare(under[method], method=made[method], seed=seed, observe=watch)

        def observe(method: str, seed: int) -> None:
            shown.update(task, description=f"{method}, seed {seed}")
            shown.advance(task)

        results = compare(prepared, names, range(number), profile=profile, observe=observe)
    if report is not None:
        command = ["pacdp", "compare", name, "--methods", methods, "--seeds", str(number)]
        command += [word for file, _ in files.values() for word in ("--plan", file)]
        command += options.sizes(profile, changes or [])
        write_report(
            report, results, curve=curve, description=experiment.description, command=command
        )
    used = {method: files[method][0] if method in files else PUBLISHED for method in names}
    if as_json:
        runs = {method: [run.to_json() for run in group] for method, group in results.items()}
        content = {"experiment": experiment.name, "seeds": number, "plans": used, "methods": runs}
        print_json(content)
        return
    first = results[names[0]][0]
    metric = first.plan.task.metric
    chance = formatting.score(first.chance, metric)
    table = Table(
        title=f"{experiment.name}, {number} seeds; "
        f"{rendering.terms(experiment.privacy, first.plan.unit)}",
        caption=None if first.chance is None else f"chance: {chance}",
    )
    table.add_column("method", no_wrap=True)
    table.add_column("plan")
    for heading in (metric, "budget ε", "certified ε", "refused"):
        table.add_column(heading, justify="right")
    for method, group in results.items():
        stats = SampleStats.of([run.metrics.get(metric, math.nan) for run in group])
        table.add_row(
            method,
            used[method],
            formatting.mean_and_deviation(stats.mean, stats.deviation, metric),
            formatting.least_middle_most(collect_epsilons(group, "epsilon_budget")),
            formatting.least_middle_most(collect_epsilons(group, "epsilon_spent")),
            str(sum(client.refused for run in group for client in run.clients)),
        )
    Console().print(table)
    if report is not None:
        typer.echo(f"report: {report}")


def _plan_files(
    plans: list[str], methods: list[str], changes: list[str]
) -> "dict[str, tuple[str, Tuned]]":
    """Which method has which tuned plan; the others have the published one."""
    found: dict[str, tuple[str, Tuned]] = {}
    for file in plans:
        if file == PUBLISHED:
            continue
        tuned = tuned_plan(file, changes)
        if tuned.method not in methods:
            raise InputError(f"--plan {file}: is for {tuned.method}, which must be among --methods")
        if tuned.method in found:
            raise InputError(f"--plan {file}: is the second for {tuned.method}, must be one")
        found[tuned.method] = file, tuned
    return found


def _events(folder: Path | None) -> Callable[["RoundResult"], None]:
    """Writes rounds as TensorBoard events, if a folder was named."""
    if folder is None:
        return lambda row: None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "--tensorboard: needs the package tensorboard: pip install 'pacdp[tensorboard]'"
        ) from None
    writer = SummaryWriter(str(folder))

    def write(result: "RoundResult") -> None:
        for name, value in result.to_json().items():
            if isinstance(value, int | float) and name != "round":
                writer.add_scalar(name, value, result.round)
        writer.flush()

    return write


@contextmanager
def _rounds(description: str, rounds: int) -> Iterator[Callable[["RoundResult"], None]]:
    with bar(description, rounds) as (shown, task):

        def advance(row: "RoundResult") -> None:
            parts = [f"{row.round / max(row.seconds, 1e-9):.1f} rounds/s"]
            parts += [f"{n} {row.metrics[n]:.3f}" for n in ("loss", "accuracy") if n in row.metrics]
            if row.epsilon_spent is not None:
                parts.append(f"ε ≤ {row.epsilon_spent:.3g} {row.adjacency}")
            shown.update(task, note=", ".join(parts))
            shown.advance(task)

        yield advance
