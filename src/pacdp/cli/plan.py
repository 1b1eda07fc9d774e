"""``pacdp plan``: show what a training run will do, release and cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Option

from pacdp import formatting
from pacdp.cli import options, rendering
from pacdp.cli.levels import cost_table, count_table
from pacdp.cli.options import PUBLISHED, Changes, ConfigurationPath, MethodName, Name, Profile, Seed
from pacdp.cli.output import print_json, print_rows
from pacdp.cli.progress import show_progress
from pacdp.storage import require_new_file

if TYPE_CHECKING:
    from pacdp.federation import Plan


def plan_command(
    name: Name,
    method: MethodName = None,
    configuration: ConfigurationPath = PUBLISHED,
    profile: Profile = None,
    seed: Seed = 0,
    changes: Changes = None,
    out: Annotated[
        Path | None, Option(help="Also write the plan to this file as JSON; must not exist yet.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what a training run will do, release and cost. Nothing is trained."""
    from pacdp import api
    from pacdp.experiments.cost import estimate_cost
    from pacdp.experiments.levels import summarise_planned

    loading = options.loading(configuration, profile, changes)
    experiment = api.load_experiment(name, **loading)
    with show_progress() as progress:
        plan = api.plan(name, method=method, seed=seed, progress=progress, **loading)
    chosen, price = plan.algorithm, estimate_cost(plan)
    if out is not None:
        require_new_file(out)
        plan.save(out)
    if as_json:
        print_json({"plan": plan.model_dump(mode="json"), "cost": vars(price)})
        return
    training, unused = plan.training, "none " if plan.track == "private-only" else ""
    batch = "all records" if training.batch == "full" else f"{training.batch} records"
    work = (
        f"{formatting.format_count(training.local_epochs, 'epoch')} in batches of {batch}"
        if training.local_epochs
        else f"{formatting.format_count(training.local_steps or 0, 'step')} on {batch}"
    )
    print_rows(
        {
            "experiment": f"{experiment.name}: {experiment.description}",
            "configuration": rendering.plan(plan.tuning),
            "public data used": f"{unused}for features or initial model ({plan.track})",
            "method": rendering.method(plan),
            "model": f"{plan.model.name}, {price.parameters:,} parameters",
            "representation": rendering.representation(plan),
            "initial model": (
                "random" if plan.hot_start is None else f"warm start, {plan.hot_start}"
            ),
            "rounds": f"{plan.rounds}, {plan.per_round} of {len(plan.clients)} clients each "
            f"({training.sampling})",
            "work per round": f"{work}; {training.optimiser.name}, lr {training.optimiser.lr:g}",
            **_clamped(plan),
            **_spending(plan),
            "server": f"{plan.server.optimiser}, clients weighted by {plan.server.weights}",
            "bytes per round": f"{price.bytes_per_round:,}, sent and received by all clients",
            "local steps": (
                f"{price.steps:,}, about {formatting.format_duration(price.seconds)} on one core"
            ),
        }
    )
    table = rendering.empty_table(
        plan,
        "client",
        ("records", "budget ε", "planned ε", "releases", "noise σ/C", "first C", "last C", "SNR"),
        caption=f"releases: how many a {plan.unit} contributes to; C: clipping bound in the first "
        "and last round; SNR: largest possible signal over noise (below 1, noise dominates)",
    )
    shown = len(plan.clients) if len(plan.clients) <= 20 else 10
    for number, client in enumerate(plan.clients[:shown]):
        guarantee = plan.planned_guarantee(number)
        first, last = (
            formatting.format_number(chosen.bound(client.epsilon, round=t, rounds=plan.rounds))
            if chosen.private
            else "-"
            for t in (0, plan.rounds - 1)
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
    if shown < len(plan.clients):
        table.add_row(f"... {len(plan.clients) - shown} more")
    Console().print(table)
    if levels := summarise_planned(plan):
        Console().print(cost_table(plan, levels, "planned"))
        Console().print(count_table(plan, shown))


def _clamped(plan: "Plan") -> dict[str, str]:
    """Return a note if a budget lies outside the domain of the curve."""
    domain = plan.settings.get("curve", {}).get("domain")
    if domain is None:
        return {}
    low, high = domain
    budgets = sorted({client.epsilon for client in plan.clients})
    outside = ", ".join(f"{budget:g}" for budget in budgets if not low <= budget <= high)
    note = f"F is defined for ε from {low:g} to {high:g}; {outside} is clamped to it"
    return {"note": note} if outside else {}


def _spending(plan: "Plan") -> dict[str, str]:
    """Return a note if the noise differs between participations."""
    spending = plan.privacy.spending
    times = max(client.participations for client in plan.clients)
    if spending.policy == "even" or times == 1 or not plan.algorithm.private:
        return {}
    if spending.policy == "replan":
        policy = "replan: the remaining budget is spread over the rounds that may still come"
        return {"spending": policy}
    first, last = (
        (times * spending.share(completed=completed, spent=0.0, planned=times, remaining=times))
        ** -0.5
        for completed in (0, times - 1)
    )
    return {"spending": f"late: noise is σ/C times {first:.3g} at first and {last:.3g} at last"}
