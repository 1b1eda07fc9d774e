"""``pacdp plan``, ``pacdp run`` and ``pacdp compare``."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from pacdp import words
from pacdp.checks import count
from pacdp.cli import options, tables
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json, print_rows
from pacdp.cli.progress import bar
from pacdp.cli.report import write_comparison, write_run_report
from pacdp.errors import InputError

if TYPE_CHECKING:
    from pacdp.curve import Curve
    from pacdp.experiments import Experiment, Prepared
    from pacdp.federation import Plan
    from pacdp.federation.engine import EngineName
    from pacdp.methods import Method

Seed = Annotated[int, typer.Option(help="Of weights, noise, sampling and who holds which budget.")]
MethodName = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="Another method, as fixed:clipping_bound=5."),
]


def plan_command(
    name: Name,
    method: MethodName = None,
    profile: Profile = None,
    seed: Seed = 0,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Also write the plan as JSON.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a training will do, release and cost. Nothing is trained."""
    from pacdp.experiments import read_experiment
    from pacdp.experiments.cost import cost
    from pacdp.experiments.prepare import plan_for, read_data

    experiment = read_experiment(name, profile=profile, changes=changes or [])
    chosen = _method(experiment, method)
    dataset, split = read_data(experiment.data, seed=_seed(seed))
    made = plan_for(experiment, chosen, dataset, split, seed=seed)
    price = cost(made)
    if out is not None:
        options.new_file(out)
        made.save(out)
    if as_json:
        print_json({"plan": made.model_dump(mode="json"), "cost": vars(price)})
        return
    training = made.training
    work = (
        f"{training.local_epochs} passes in batches of {training.batch}"
        if training.local_epochs
        else f"{training.local_steps} steps of batch {training.batch}"
    )
    print_rows(
        {
            "experiment": f"{experiment.name}: {experiment.description}",
            "method": f"{made.method} {tables.settings(made.settings)}".strip(),
            "model": f"{made.model.name}, {price.parameters:,} parameters",
            "first model": "random" if made.hot_start is None else f"hot start, {made.hot_start}",
            "rounds": f"{made.rounds}, {made.per_round} of {len(made.clients)} clients each "
            f"({training.sampling})",
            "a participation": f"{work}; {training.optimiser.name}, lr {training.optimiser.lr:g}",
            **_clamped(made),
            **_spending(made),
            "server": f"{made.server.optimiser}, weights by {made.server.weights}",
            "bytes a round": f"{price.bytes_per_round:,} up and down",
            "local steps": f"{price.steps:,}, about {words.duration(price.seconds)} on one core",
        }
    )
    table = Table(
        title=tables.terms(made.privacy, made.unit),
        caption=f"K: releases per {made.unit}; SNR: the largest signal of a release over its noise",
    )
    table.add_column("client", no_wrap=True)
    for heading in (
        *("records", "ε", "planned", "K", "σ/C"),
        *("C first", "C last", "SNR"),
    ):
        table.add_column(heading, justify="right")
    shown = range(len(made.clients)) if len(made.clients) <= 20 else [*range(10), -1]
    for number in shown:
        if number < 0:
            table.add_row(f"... {len(made.clients) - 10} more")
            continue
        task, planned = made.clients[number], made.planned(number)
        first, last = (
            words.number(chosen.bound(task.epsilon, round=t, rounds=made.rounds))
            if chosen.private
            else "-"
            for t in (0, made.rounds - 1)
        )
        table.add_row(
            task.name,
            str(task.records),
            words.number(task.budget),
            words.number(None if planned is None else planned.epsilon),
            str(task.releases) if planned else "-",
            words.number(task.noise_multiplier),
            *(first, last),
            words.number(price.signal_to_noise[number]),
        )
    Console().print(table)


def run_command(
    name: Name,
    method: MethodName = None,
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
            metavar="auto|stacked|threads|one-by-one",
            help="How a round is computed; one-by-one names the client where something breaks.",
        ),
    ] = "auto",
    as_json: options.Json = False,
) -> None:
    """Train, and say what came of it: accuracy, and each client's certified ε."""
    from pacdp.experiments import Outcome, RunFolder, prepare, read_experiment
    from pacdp.experiments.execute import execute, refuse_engine, summary

    experiment = read_experiment(name, profile=profile, changes=changes or [])
    if resume and out is None:
        raise InputError("--resume: needs --out, the folder of the stopped run")
    kept_curve = out / "curve.json" if resume and out is not None else None
    curve = missing_curve(experiment, [method], kept=kept_curve, seed=_seed(seed))
    chosen = _method(experiment, method, curve)
    write_events = _events(tensorboard)
    prepared = prepare(experiment, method=chosen, seed=_seed(seed), device=options.device(device))
    refuse_engine(prepared, engine, device=device)
    folder = None if out is None else RunFolder(out, prepared, resume=resume)
    if folder is not None and curve is not None:
        curve.save(folder.path / "curve.json")
    with _rounds(f"{experiment.name}, {chosen.name}", prepared.plan.rounds) as advance:

        def observe(row: dict[str, Any]) -> None:
            advance(row)
            write_events(row)
            if folder is not None:
                folder.row(row)

        kept = None if folder is None else folder.checkpoint
        result = execute(
            prepared,
            observe=observe,
            checkpoint=kept,
            device=device,
            engine=cast("EngineName", engine),
        )
    found = summary(prepared, result, profile=profile)
    if folder is not None:
        folder.finish(result, found)
        write_run_report(
            folder.path,
            Outcome(plan=result.plan, rows=result.history, result=found),
            description=experiment.description,
            command=_again(name, method, profile, seed, changes or []),
        )
    if as_json:
        print_json(found)
        return
    tables.print_result(prepared, found)
    if out is not None:
        typer.echo(f"run folder: {out}\nreport: {out / 'report.html'}")


def _again(
    name: str, method: str | None, profile: str | None, seed: int, changes: list[str]
) -> list[str]:
    """The command that trains the same once more."""
    chosen = [] if method is None else ["--method", method]
    return ["pacdp", "run", name, *chosen, *_sizes(profile, changes), "--seed", str(seed)]


def _sizes(profile: str | None, changes: list[str]) -> list[str]:
    """The options that say which profile was taken and what was changed."""
    chosen = [] if profile is None else ["--profile", profile]
    return [*chosen, *(word for one in changes for word in ("--set", one))]


def compare_command(
    name: Name,
    methods: Annotated[
        str, typer.Option(help="Names with commas, as pac-dp,fixed:clipping_bound=5,fedavg.")
    ] = "pac-dp,fixed,dp-fedavg,fedavg",
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
    from pacdp.experiments.execute import Spread, epsilons
    from pacdp.experiments.outcome import compare

    number = int(count("seeds", seeds))
    experiment = read_experiment(name, profile=profile, changes=changes or [])
    names = [part.strip() for part in methods.split(",") if part.strip()]
    if not names or len(set(names)) != len(names):
        raise InputError(f"--methods {methods!r}: must be different names with commas between")
    if report is not None:
        options.new_file(report)
    curve = missing_curve(experiment, [*names])
    made = {method: _method(experiment, method, curve) for method in names}

    def prepared(method: str, seed: int) -> "Prepared":
        return prepare(experiment, method=made[method], seed=seed)

    with bar("comparing", len(names) * number) as (shown, task):

        def observe(method: str, seed: int) -> None:
            shown.update(task, description=f"{method}, seed {seed}")
            shown.advance(task)

        outcomes = compare(prepared, names, range(number), profile=profile, observe=observe)
    if report is not None:
        command = ["pacdp", "compare", name, "--methods", methods, "--seeds", str(number)]
        command += _sizes(profile, changes or [])
        write_comparison(
            report, outcomes, curve=curve, description=experiment.description, command=command
        )
    found = {method: [one.result for one in runs] for method, runs in outcomes.items()}
    if as_json:
        print_json({"experiment": experiment.name, "seeds": number, "methods": found})
        return
    first = found[names[0]][0]
    metric = "accuracy" if first["accuracy"] is not None else "loss"
    table = Table(
        title=f"{experiment.name}, {number} seeds; "
        f"{tables.terms(experiment.privacy, first['clients'][0]['unit'])}",
        caption=None if first["chance"] is None else f"chance: {first['chance']:.1%}",
    )
    table.add_column("method", no_wrap=True)
    for heading in (metric, "budget ε", "certified ε", "refused"):
        table.add_column(heading, justify="right")
    for method, runs in found.items():
        spread = Spread.of([run["metrics"].get(metric, math.nan) for run in runs])
        table.add_row(
            method,
            words.mean_and_deviation(spread.mean, spread.deviation, metric),
            words.least_middle_most(epsilons(runs, "epsilon_budget")),
            words.least_middle_most(epsilons(runs, "epsilon_realised")),
            str(sum(client["refused"] for run in runs for client in run["clients"])),
        )
    Console().print(table)
    if report is not None:
        typer.echo(f"report: {report}")


def _clamped(plan: "Plan") -> dict[str, str]:
    """A note where a budget lies outside what the curve was made for."""
    domain = plan.settings.get("curve", {}).get("domain")
    if domain is None:
        return {}
    outside = sorted({t.epsilon for t in plan.clients if not domain[0] <= t.epsilon <= domain[1]})
    if not outside:
        return {}
    shown = ", ".join(f"{epsilon:g}" for epsilon in outside)
    return {"note": f"F is made for ε from {domain[0]:g} to {domain[1]:g}; {shown} gets its end"}


def _spending(plan: "Plan") -> dict[str, str]:
    """A note where noise is not the same in every participation."""
    spending = plan.privacy.spending
    times = max(task.participations for task in plan.clients)
    if spending.policy == "even" or times == 1 or not plan.made_method.private:
        return {}
    if spending.policy == "replan":
        return {"spending": "replan: what is left, over the rounds that may still come"}
    first, last = (
        (times * spending.share(made=made, spent=0.0, planned=times, ahead=times)) ** -0.5
        for made in (0, times - 1)
    )
    return {"spending": f"late: noise is σ/C times {first:.3g} at first and {last:.3g} at last"}


def _method(experiment: "Experiment", text: str | None, curve: "Curve | None" = None) -> "Method":
    """A method by ``NAME`` or ``NAME:key=value:key=value``, with a curve if it lacks one."""
    name, *parts = (experiment.method if text is None else text).split(":")
    if not name:
        raise InputError(f"--method {text!r}: must be NAME or NAME:KEY=VALUE")
    fitted = {} if curve is None else dict.fromkeys(experiment.lacking(name), curve)
    return experiment.made_method(name, options.assignments("--method", parts) | fitted)


def missing_curve(
    experiment: "Experiment",
    methods: list[str | None],
    *,
    kept: Path | None = None,
    seed: int = 0,
) -> "Curve | None":
    """A curve that is fitted now, if a method needs one and the experiment has none."""
    names = [(experiment.method if text is None else text).split(":")[0] for text in methods]
    if not any(experiment.lacking(name) for name in names):
        return None
    from pacdp.cli.curve import fitted
    from pacdp.curve import Curve
    from pacdp.experiments.offline import setting_for

    if kept is not None and kept.is_file():
        return Curve.load(kept)
    setting = setting_for(experiment, seed=seed)
    typer.echo(f"no curve is given: fitting one on {setting.proxy.data.name}", err=True)
    return fitted(experiment, setting)


def _seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: must be a whole number from 0 to 2^63 - 1")
    return seed


def _events(folder: Path | None) -> Callable[[dict[str, Any]], None]:
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

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                writer.add_scalar(name, value, row["round"])
        writer.flush()

    return write


@contextmanager
def _rounds(description: str, rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    with bar(description, rounds) as (shown, task):

        def advance(row: dict[str, Any]) -> None:
            parts = [f"{row['round'] / max(row['seconds'], 1e-9):.1f} rounds/s"]
            parts += [f"{name} {row[name]:.3f}" for name in ("loss", "accuracy") if name in row]
            if row["epsilon_spent"] is not None:
                parts.append(f"ε ≤ {row['epsilon_spent']:.3g} {row['adjacency']}")
            shown.update(task, note=", ".join(parts))
            shown.advance(task)

        yield advance
