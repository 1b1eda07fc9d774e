"""``pacdp federation``: make a federation, run it, watch it and verify it."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pacdp import formatting
from pacdp.cli import options
from pacdp.cli.output import print_rows
from pacdp.cli.progress import show_progress

app = typer.Typer(
    no_args_is_help=True,
    help="Make, run, watch and verify a federation of sites and a coordinator.",
)

Folder = Annotated[
    Path, Argument(metavar="DIR", help="The folder of the federation, made by init.")
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
        Option(help="Seconds after which sites answer; default: each site measures it."),
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
        made, plan = create_federation(folder, request, progress=progress)
    sent = formatting.format_count(len(plan.clients), "site")
    print_rows(
        {
            "run": plan.run,
            "sites": f"{sent}: {', '.join(client.name for client in plan.clients)}",
            "rounds": f"{plan.rounds}, at least {made.load_settings().minimum} replies each",
            "privacy": str(plan.planned_guarantee(0)) + " at the first site",
            "for a trial": "this machine holds the records of all sites, and the plan is accepted "
            "for all of them; real sites accept it themselves (pacdp site accept)",
            "start it": f"pacdp federation up {folder}",
        }
    )


@app.command()
def serve(
    settings: Annotated[
        Path,
        Option("--settings", metavar="FILE", help="The coordinator's settings."),
    ] = Path("coordinator.toml"),
) -> None:
    """Coordinate the rounds of a run, until it has ended; start it again to resume it."""
    from pacdp.coordinator import Coordinator, CoordinatorSettings, RunFailedError, StoppedError
    from pacdp.federation import RoundResult

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    coordinator = Coordinator(CoordinatorSettings.load_toml(settings))
    plan = coordinator.plan

    def show(row: RoundResult) -> None:
        metrics = "".join(f", {name} {value:.4g}" for name, value in row.metrics.items())
        typer.echo(
            f"round {row.round} of {plan.rounds}: {row.answered} of {row.asked} replied{metrics}"
        )

    ready = (
        f"{plan.run}: {formatting.format_count(plan.rounds, 'round')}, "
        f"{coordinator.log.count_closed()} closed; relays ask at {coordinator.settings.socket}"
    )
    try:
        coordinator.serve(on_ready=lambda: typer.echo(ready), on_round=show)
    except StoppedError as error:
        typer.echo(f"pacdp: {error}", err=True)
        raise typer.Exit(143) from None
    except RunFailedError as error:
        typer.echo(f"pacdp: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{plan.run}: ended; the results are in {coordinator.settings.results}")
