"""``pacdp run``, ``pacdp compare`` and ``pacdp report``."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from pacdp import formatting
from pacdp.cli import options
from pacdp.cli.options import PUBLISHED, Changes, ConfigurationPath, MethodName, Name, Profile, Seed
from pacdp.cli.output import print_json, print_table
from pacdp.cli.progress import show_progress
from pacdp.errors import InputError
from pacdp.storage import require_new_file

if TYPE_CHECKING:
    from pacdp.federation import RoundResult
    from pacdp.progress import Progress
    from pacdp.reporting import Comparison


def run_command(
    name: Name,
    method: MethodName = None,
    configuration: ConfigurationPath = PUBLISHED,
    profile: Profile = None,
    seed: Seed = 0,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        Option(help="Folder to write the model, a report and the run's other files to."),
    ] = None,
    resume: Annotated[
        bool, options.flag("--resume", "Continue an interrupted run in the --out folder.")
    ] = False,
    tensorboard: Annotated[
        Path | None, Option(help="Also write TensorBoard events into this folder.")
    ] = None,
    device: options.Device = "cpu",
    engine: Annotated[
        str,
        Option(
            metavar="auto|stacked|threaded|serial",
            help="How to execute the clients of a round; use serial for debugging, its errors name "
            "the client.",
        ),
    ] = "auto",
    as_json: options.Json = False,
) -> None:
    """Train a model and show its accuracy and the ε that each client spent."""
    from pacdp import api
    from pacdp.cli.rendering import print_result

    loading = options.loading(configuration, profile, changes)
    repeated = {
        "--method": method,
        "--configuration": None if configuration == PUBLISHED else configuration,
        "--profile": profile,
        "--set": changes,
        "--seed": seed,
    }
    write_events = _events(tensorboard)
    if resume and out is None:
        raise InputError("--resume: needs --out, the folder of the interrupted run")
    with show_progress() as progress:
        rounds = api.load_experiment(name, **loading).training.rounds

        def on_round(result: "RoundResult") -> None:
            _show_round(progress, f"training {name}", rounds, result)
            write_events(result)

        result = api.run(
            name,
            method=method,
            seed=seed,
            folder=out,
            resume=resume,
            device=options.device(device),
            engine=engine,
            on_round=on_round,
            progress=progress,
            command=options.command_line("run", name, repeated),
            **loading,
        )
    if as_json:
        print_json(result.to_json())
        return
    print_result(result)
    if out is None:
        typer.echo("Nothing was saved; use --out FOLDER to keep the model and a report.")
    else:
        typer.echo(f"run folder: {out}\nreport: {out / 'report.html'}")


def compare_command(
    name: Name,
    methods: Annotated[
        str, Option(help="Methods separated by commas, e.g. pac-dp,fixed:clipping_bound=5.")
    ] = "pac-dp,fixed,dp-fedavg,fedavg",
    configurations: Annotated[
        list[str] | None,
        Option(
            "--configuration",
            metavar="published|FILE",
            help="Tuned configuration (from pacdp tune) for one of the methods. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[int, Option(help="Number of seeds (0, 1, ...).")] = 3,
    profile: Profile = None,
    changes: Changes = None,
    report: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also write an HTML report to this file; must not exist yet."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare methods under the same budgets: mean ± standard deviation over several seeds."""
    from pacdp import api

    names = [part.strip() for part in methods.split(",") if part.strip()]
    files = options.configurations(configurations or [], names)
    if report is not None:
        require_new_file(report)
    with show_progress() as progress:
        comparison = api.compare(
            name,
            names,
            seeds=seeds,
            profile=profile,
            changes=changes or [],
            configurations=files,
            progress=progress,
        )
    if report is not None:
        given = {"--methods": methods, "--seeds": seeds, "--configuration": list(files.values())}
        given |= {"--profile": profile, "--set": changes}
        described = api.load_experiment(name, curves=False).description
        command = options.command_line("compare", name, given)
        api.report(comparison, report, description=described, command=command)
    used = {method: files.get(method, PUBLISHED) for method in names}
    if as_json:
        first = comparison.groups[names[0]][0]
        runs = {
            label: [run.to_json() for run in group] for label, group in comparison.groups.items()
        }
        print_json({"experiment": first.experiment, "seeds": seeds, "plans": used, "methods": runs})
        return
    _print_comparison(comparison, used)
    if report is not None:
        typer.echo(f"report: {report}")


def _print_comparison(comparison: "Comparison", configurations: dict[str, str]) -> None:
    from pacdp.cli.rendering import terms
    from pacdp.experiments.results import collect_epsilons
    from pacdp.stats import SampleStats

    groups, metric, plan = comparison.groups, comparison.metric, comparison.plan
    baseline = comparison.baseline
    seeds = len(next(iter(groups.values())))
    rows = []
    for label, group in groups.items():
        stats = SampleStats.of([run.metrics.get(metric, math.nan) for run in group])
        rows.append(
            (
                *(label, configurations[label]),
                formatting.format_mean_deviation(stats.mean, stats.deviation, metric),
                formatting.format_min_median_max(collect_epsilons(group, "epsilon_budget")),
                formatting.format_min_median_max(collect_epsilons(group, "epsilon_spent")),
                str(sum(client.refused for run in group for client in run.clients)),
            )
        )
    chance = None if baseline is None else f"chance: {formatting.format_score(baseline, metric)}"
    print_table(
        f"{plan.data}, {seeds} seeds; {terms(plan.privacy, plan.unit)}",
        ("method", "configuration", metric, "budget ε", "spent ε", "refused"),
        rows,
        text_columns=2,
        caption=chance,
    )


def report_command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, Option(help="HTML file to write; must not exist yet.")],
    title: Annotated[str | None, Option(help="Title of the report.")] = None,
) -> None:
    """Write an HTML report on finished runs of one experiment."""
    from pacdp import api

    command = ["pacdp", "report", *map(str, runs), "--out", str(out)]
    api.report(runs, out, title=title, command=command)
    typer.echo(f"report: {out}")


def _events(folder: Path | None) -> Callable[["RoundResult"], None]:
    """Return a function that writes rounds as TensorBoard events, if a folder was named."""
    if folder is None:
        return lambda result: None
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


def _show_round(progress: "Progress", task: str, rounds: int, result: "RoundResult") -> None:
    parts = [f"{result.round / max(result.seconds, 1e-9):.1f} rounds/s"]
    parts += [f"{n} {result.metrics[n]:.3f}" for n in ("loss", "accuracy") if n in result.metrics]
    if result.epsilon_spent is not None:
        parts.append(f"ε ≤ {result.epsilon_spent:.3g} {result.adjacency}")
    progress(task, result.round, rounds, ", ".join(parts))
