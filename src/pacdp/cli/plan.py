"""``pacdp plan``: what a training will do, release and cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from pacdp import formatting
from pacdp.cli import options, rendering
from pacdp.cli.options import PUBLISHED, Changes, MethodName, Name, PlanName, Profile, Seed
from pacdp.cli.output import print_json, print_rows
from pacdp.cli.progress import show_progress

if TYPE_CHECKING:
    from pacdp.federation import Plan


def plan_command(
    name: Name,
    method: MethodName = None,
    plan: PlanName = PUBLISHED,
    profile: Profile = None,
    seed: Seed = 0,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Also write the plan as JSON.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a training will do, release and cost. Nothing is trained."""
    from pacdp import api
    from pacdp.experiments.cost import estimate_cost

    loading = options.loading(plan, profile, changes)
    experiment = api.load_experiment(name, **loading)
    with show_progress() as progress:
        made = api.plan(name, method=method, seed=seed, progress=progress, **loading)
    chosen, price = made.algorithm, estimate_cost(made)
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
            "plan": rendering.plan(made.tuning),
            "track": made.track,
            "method": f"{made.method} {rendering.settings(made.settings)}".strip(),
            "model": f"{made.model.name}, {price.parameters:,} parameters",
            "representation": rendering.representation(made),
            "first model": "random" if made.hot_start is None else f"hot start, {made.hot_start}",
            "rounds": f"{made.rounds}, {made.per_round} of {len(made.clients)} clients each "
            f"({training.sampling})",
            "a participation": f"{work}; {training.optimiser.name}, lr {training.optimiser.lr:g}",
            **_clamped(made),
            **_spending(made),
            "server": f"{made.server.optimiser}, weights by {made.server.weights}",
            "bytes a round": f"{price.bytes_per_round:,} up and down",
            "local steps": (
                f"{price.steps:,}, about {formatting.format_duration(price.seconds)} on a core"
            ),
        }
    )
    table = Table(
        title=rendering.terms(made.privacy, made.unit),
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
        client, guarantee = made.clients[number], made.planned_guarantee(number)
        first, last = (
            formatting.format_number(chosen.bound(client.epsilon, round=t, rounds=made.rounds))
            if chosen.private
            else "-"
            for t in (0, made.rounds - 1)
        )
        table.add_row(
            client.name,
            str(client.records),
            formatting.format_number(client.budget),
            formatting.format_number(None if guarantee is None else guarantee.epsilon),
            str(client.releases) if guarantee else "-",
            formatting.format_number(client.noise_multiplier),
            *(first, last),
            formatting.format_number(price.signal_to_noise[number]),
        )
    Console().print(table)


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
    times = max(client.participations for client in plan.clients)
    if spending.policy == "even" or times == 1 or not plan.algorithm.private:
        return {}
    if spending.policy == "replan":
        return {"spending": "replan: what is left, over the rounds that may still come"}
    first, last = (
        (times * spending.share(completed=completed, spent=0.0, planned=times, remaining=times))
        ** -0.5
        for completed in (0, times - 1)
    )
    return {"spending": f"late: noise is σ/C times {first:.3g} at first and {last:.3g} at last"}
