"""``pacdp federation``: run a federation whose sites are processes of their own."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from pacdp.formatting import format_count

app = typer.Typer(
    no_args_is_help=True,
    help="Run a federation of sites, each of which enforces its own budget.",
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
        f"{plan.run}: {format_count(plan.rounds, 'round')}, "
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
