"""``pacdp federation``: create, run, monitor and verify a federation."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pacdp import formatting
from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows, print_table
from pacdp.cli.progress import show_progress

if TYPE_CHECKING:
    from pacdp.deployment.layout import FederationFolder

app = typer.Typer(
    no_args_is_help=True,
    help="Create, run, monitor and verify a federation of sites and a coordinator.",
)

Folder = Annotated[
    Path, Argument(metavar="DIR", help="The folder of the federation, created by init.")
]


@app.command()
def init(
    folder: Annotated[Path, Argument(metavar="DIR", help="The new folder of the federation.")],
    experiment: Annotated[
        str, Option(metavar="EXPERIMENT", help="Name of a built-in experiment, or a TOML file.")
    ],
    sites: Annotated[
        str | None,
        Option(metavar="A,B,C", help="Clients that take part, separated by commas; default: all."),
    ] = None,
    method: options.MethodName = None,
    profile: options.Profile = None,
    changes: options.Changes = None,
    seed: options.Seed = 0,
    rounds: Annotated[int | None, Option(help="Number of rounds; default: the experiment's.")] = (
        None
    ),
    interval: Annotated[
        float | None,
        Option(help="Minimum response time of sites in seconds; default: as measured."),
    ] = None,
    deadline: Annotated[float, Option(help="Seconds that the sites have for a round.")] = 300.0,
    minimum: Annotated[
        int | None, Option(help="Replies that a round needs; default: half of the sites.")
    ] = None,
    host: Annotated[
        str, Option(metavar="NAME", help="Name or address at which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[
        int, Option(help="Port of the server; SuperNodes use those that follow, on loopback.")
    ] = 9092,
) -> None:
    """Write everything for a trial: plan, sites, coordinator, certificates, units, containers."""
    from pacdp import api
    from pacdp.deployment.creation import FederationRequest, create_federation

    given = list(changes or []) + ([] if rounds is None else [f"training.rounds={rounds}"])
    request = FederationRequest(
        experiment=api.load_experiment(experiment, profile=profile, changes=given),
        source=experiment,
        method=method,
        seed=seed,
        sites=None if sites is None else [name.strip() for name in sites.split(",")],
        interval=interval,
        deadline=deadline,
        minimum=minimum,
        host=host,
        port=port,
    )
    with show_progress() as progress:
        created, plan = create_federation(folder, request, progress=progress)
    count = formatting.format_count(len(plan.clients), "site")
    print_rows(
        {
            "run": plan.run,
            "sites": f"{count}: {', '.join(client.name for client in plan.clients)}",
            "rounds": f"{plan.rounds}; replies needed in each: {created.load_settings().minimum}",
            "privacy": str(plan.planned_guarantee(0)) + " at the first site",
            "for a trial": "this machine holds the records of all sites, and the plan was accepted "
            "on their behalf; real sites accept it themselves (pacdp site accept)",
            "start it": f"pacdp federation up {folder}",
        }
    )


@app.command()
def server(
    folder: Annotated[Path, Argument(metavar="DIR", help="The new folder, on the server.")],
    plan: Annotated[Path, Option(help="The plan.")],
    key: Annotated[Path, Option(help="The coordinator's key, created by pacdp site key.")],
    site: Annotated[
        list[str], Option(metavar="NAME=KEY", help="A client and its public key. Repeatable.")
    ],
    host: Annotated[str, Option(metavar="NAME", help="Name or address of this machine.")],
    port: Annotated[int, Option(help="Port on which sites reach it.")] = 9092,
    minimum: Annotated[
        int | None, Option(help="Replies that a round needs; default: half of the sites.")
    ] = None,
    deadline: Annotated[float, Option(help="Seconds that the sites have for a round.")] = 300.0,
) -> None:
    """Write the server's files for a real federation: settings, certificates, app and units."""
    from pacdp.deployment.kits import create_server
    from pacdp.errors import InputError

    for pair in site:
        if "=" not in pair:
            raise InputError(f"--site {pair}: must be NAME=KEY")
    sites = dict(pair.rpartition("=")[::2] for pair in site)
    if len(sites) < len(site):
        raise InputError("--site: two have the same name; each client needs exactly one")
    create_server(
        folder,
        plan=plan,
        key=key,
        sites=sites,
        host=host,
        port=port,
        minimum=minimum,
        deadline=deadline,
    )
    typer.echo(f"{folder}: written; give each site the plan and {folder / 'superlink' / 'ca.crt'}")


@app.command()
def node(
    folder: Annotated[Path, Argument(metavar="DIR", help="The new folder, on the site's machine.")],
    site: Annotated[str, Option(metavar="NAME", help="Name of this client in the plan.")],
    server: Annotated[str, Option(metavar="HOST:PORT", help="Address of the server.")],
    coordinator: Annotated[str, Option(metavar="KEY", help="The coordinator's public key.")],
) -> None:
    """Write a site's files for a real federation: keys, settings and units."""
    from pacdp.deployment.kits import create_node

    public = create_node(folder, site=site, server=server, coordinator=coordinator)
    print_rows(
        {
            "public key": public,
            "node": str(folder / "node" / "node.key.pub"),
            "next": "give both, and the number of your records, to the server's administrator; "
            "nothing else leaves this machine",
        }
    )


@app.command()
def up(
    folder: Folder,
    detach: Annotated[bool, options.flag("--detach", "Run in the background.")] = False,
    timeout: Annotated[
        float | None, Option(help="Stop after this many seconds; the run can be resumed.")
    ] = None,
    transport: Annotated[
        str,
        Option(
            metavar="flower|direct",
            help="How messages are carried: by Flower over TLS, or by a local relay.",
        ),
    ] = "flower",
) -> None:
    """Run all processes on this machine until the run has ended; run again to resume."""
    from pacdp.deployment.layout import FederationFolder
    from pacdp.deployment.running import ENDED, STOPPED, run_federation, start_detached
    from pacdp.deployment.supervisor import ProcessFailedError

    path = FederationFolder(folder.resolve())
    try:
        if detach:
            supervisor = start_detached(path, transport=transport, timeout=timeout)
            if supervisor is not None:
                typer.echo(
                    f"{path.load_settings().run}: running in the background "
                    f"(PID {supervisor.pid}); see pacdp federation status {folder}"
                )
                return
        code = run_federation(path, transport=transport, timeout=timeout, report=typer.echo)
    except ProcessFailedError as error:
        typer.echo(f"pacdp: {error}", err=True)
        raise typer.Exit(1) from None
    if code == STOPPED:
        typer.echo(f"stopped; pacdp federation up {folder} resumes it")
    else:
        _print_state(path)
    if code != ENDED:
        raise typer.Exit(code)


@app.command()
def down(folder: Folder) -> None:
    """Stop all processes of a federation; its run can be resumed."""
    from pacdp.deployment.layout import FederationFolder
    from pacdp.deployment.supervisor import stop_federation

    path = FederationFolder(folder.resolve())
    path.load_settings()
    stopped = stop_federation(path)
    typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def status(folder: Folder, as_json: options.Json = False) -> None:
    """Show rounds, answers, refusals, traffic and each site's spending."""
    from pacdp.deployment.layout import FederationFolder
    from pacdp.deployment.status import read_federation

    path = FederationFolder(folder.resolve())
    if as_json:
        print_json(read_federation(path))
    else:
        _print_state(path)


@app.command()
def verify(folder: Folder, as_json: options.Json = False) -> None:
    """Check that all ledgers, their stored replies, the run's log and the model agree."""
    from pacdp.deployment.layout import FederationFolder
    from pacdp.deployment.verification import DisagreementError, verify_federation

    try:
        report = verify_federation(FederationFolder(folder.resolve()))
    except DisagreementError as error:
        if as_json:
            print_json({"agree": False, "disagreement": str(error)})
        else:
            typer.echo(f"pacdp: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json({"agree": True, **report})
        return
    print_rows(
        {
            "run": report["run"],
            "rounds": f"{report['closed']} of {report['rounds']} closed",
            "model": report["model"],
        }
        | {
            f"site {name}": f"rounds: {site['debited']} debited, {site['answered']} answered, "
            f"{site['delivered']} delivered; {_describe_spent(site)}"
            for name, site in report["sites"].items()
        }
        | {"result": "all agree"}
    )


@app.command()
def serve(
    settings: Annotated[
        Path,
        Option("--settings", metavar="FILE", help="The coordinator's settings."),
    ] = Path("coordinator.toml"),
) -> None:
    """Coordinate the rounds of a run until it has ended; start it again to resume."""
    from pacdp.coordinator import Coordinator, CoordinatorSettings, RunFailedError, StoppedError
    from pacdp.deployment.running import describe_round

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    coordinator = Coordinator(CoordinatorSettings.load_toml(settings))
    plan = coordinator.plan
    ready = (
        f"{plan.run}: {formatting.format_count(plan.rounds, 'round')}, "
        f"{coordinator.log.count_closed()} closed; listening on {coordinator.settings.socket}"
    )
    try:
        coordinator.serve(
            on_ready=lambda: typer.echo(ready),
            on_round=lambda row: typer.echo(describe_round(row, plan.rounds)),
        )
    except StoppedError as error:
        typer.echo(f"pacdp: {error}", err=True)
        raise typer.Exit(143) from None
    except RunFailedError as error:
        typer.echo(f"pacdp: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{plan.run}: ended; the results are in {coordinator.settings.results}")


def _print_state(folder: "FederationFolder") -> None:
    from pacdp.deployment.status import read_federation

    state = read_federation(folder)
    run, sites = state["coordinator"], state["sites"]
    ended = [name for name, process in state["processes"].items() if not process["running"]]
    traffic, last = run["traffic"], (run["history"] or [{}])[-1]
    scores = {key: last[key] for key in ("accuracy", "loss") if key in last}
    rows = {
        "run": f"{run['run']}, {run['state']}" + (f": {run['failure']}" if run["failure"] else ""),
        "rounds": f"{run['closed']} of {run['rounds']} closed",
        "test records": ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        or "not evaluated yet",
        "uploads": "none yet"
        if not traffic or not traffic["answers"]
        else f"{traffic['answers']} answers of "
        f"{traffic['answer_bytes'] // traffic['answers']} bytes",
        "processes": f"{len(state['processes']) - len(ended)} running"
        + (f", {', '.join(ended)} not" if ended else ""),
    }
    print_rows(rows)
    budget = next(iter(sites.values()))["budget"]
    print_table(
        f"ε at δ = {budget['delta']:g}, {budget['adjacency']} of a {budget['unit']}",
        ("site", "refusals", "replies", "budget ε", "spent ε"),
        [
            (
                name,
                ", ".join(f"{n} {code}" for code, n in run["sites"][name]["refusals"].items())
                or "-",
                str(run["sites"][name]["replies"]),
                f"{site['budget']['epsilon']:.6g}",
                f"{site['charged']['epsilon']:.6g}",
            )
            for name, site in sites.items()
        ],
        text_columns=2,
    )


def _describe_spent(site: dict[str, Any]) -> str:
    spent, budget = site["spent"], site["budget"]
    return (
        f"ε = {spent['epsilon']:.6g} of {budget['epsilon']:.6g} at δ = {budget['delta']:g}, "
        f"{budget['adjacency']} of a {budget['unit']}"
    )
