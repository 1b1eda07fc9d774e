"""``pacdp plan``: show what a training run will do, release and cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pacdp import formatting
from pacdp.cli import options, rendering
from pacdp.cli.levels import cost_table, count_table
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
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the plan to this file as JSON; must not exist yet."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a training run will do, release and cost. Nothing is trained."""
    from pacdp import api
    from pacdp.experiments.cost import estimate_cost
    from pacdp.experiments.levels import summarise_planned

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
    batch = "all records" if training.batch == "full" else f"{training.batch} records"
    work = (
        f"{formatting.format_count(training.local_epochs, 'epoch')} in batches of {batch}"
        if training.local_epochs
        else f"{formatting.format_count(training.local_steps or 0, 'step')} on {batch}"
    )
    print_rows(
        {
            "experiment": f"{experiment.name}: {experiment.description}",
            "configuration": rendering.plan(made.tuning),
            "public data used": _public_data(made),
            "method": rendering.method(made),
            "model": f"{made.model.name}, {price.parameters:,} parameters",
            "representation": rendering.representation(made),
            "initial model": (
                "random" if made.hot_start is None else f"warm start, {made.hot_start}"
            ),
            "rounds": f"{made.rounds}, {made.per_round} of {len(made.clients)} clients each "
            f"({training.sampling})",
            "work per round": f"{work}; {training.optimiser.name}, lr {training.optimiser.lr:g}",
            **_clamped(made),
            **_spending(made),
            "server": f"{made.server.optimiser}, clients weighted by {made.server.weights}",
            "bytes per round": f"{price.bytes_per_round:,}, sent and received by all clients",
            "local steps": (
                f"{price.steps:,}, about {formatting.format_duration(price.seconds)} on one core"
            ),
        }
    )
    table = rendering.empty_table(
        made,
        "client",
        ("records", "budget ε", "planned ε", "releases", "noise σ/C", "first C", "last C", "SNR"),
        caption=f"releases: how many a {made.unit} contributes to; C: clipping bound in the first "
        "and last round; SNR: largest possible signal over noise (below 1, noise dominates)",
    )
    shown = range(len(made.clients) if len(made.clients) <= 20 else 10)
    for number in shown:
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
    if len(shown) < len(made.clients):
        table.add_row(f"... {len(made.clients) - len(shown)} more")
    Console().print(table)
    if levels := summarise_planned(made):
        Console().print(cost_table(made, levels, "planned"))
        Console().print(count_table(made, shown))


def _public_data(plan: "Plan") -> str:
    """Say whether public records trained the features or the initial model."""
    if plan.track == "private-only":
        return "none for features or initial model (private-only)"
    return "for features or initial model (public)"


def _clamped(plan: "Plan") -> dict[str, str]:
    """Return a note if a budget lies outside the domain of the curve."""
    domain = plan.settings.get("curve", {}).get("domain")
    if domain is None:
        return {}
    outside = sorted({t.epsilon for t in plan.clients if not domain[0] <= t.epsilon <= domain[1]})
    if not outside:
        return {}
    shown = ", ".join(f"{epsilon:g}" for epsilon in outside)
    return {
        "note": f"F is defined for ε from {domain[0]:g} to {domain[1]:g}; {shown} is clamped to it"
    }


def _spending(plan: "Plan") -> dict[str, str]:
    """Return a note if the noise differs between participations."""
    spending = plan.privacy.spending
    times = max(client.participations for client in plan.clients)
    if spending.policy == "even" or times == 1 or not plan.algorithm.private:
        return {}
    if spending.policy == "replan":
        return {
            "spending": "replan: the remaining budget is spread over the rounds that may still come"
        }
    first, last = (
        (times * spending.share(completed=completed, spent=0.0, planned=times, remaining=times))
        ** -0.5
        for completed in (0, times - 1)
    )
    return {"spending": f"late: noise is σ/C times {first:.3g} at first and {last:.3g} at last"}
