"""How plans and results are shown to a person."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pacdp import formatting
from pacdp.cli.output import print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pacdp.experiments import RunResult
    from pacdp.federation import Plan


def print_result(result: "RunResult") -> None:
    """Print the result of a run: metrics, guarantees, and a row for each client."""
    from pacdp.experiments.results import collect_epsilons

    rows = {"method": f"{result.method} {settings(result.plan.settings)}".strip()}
    if result.plan.tuning is not None:
        rows["plan"] = plan(result.plan.tuning)
    metric = result.plan.task.metric
    if result.before_private_data is not None:
        before = result.before_private_data.get(metric)
        shown = f"{before:.1%}" if metric == "accuracy" else formatting.format_number(before, 4)
        rows["before"] = f"{shown} before any private data"
    if result.accuracy is not None:
        # Only for the headline metric of a task is there a baseline.
        known = metric == "accuracy" and result.chance is not None
        chance = f" (chance {result.chance:.1%})" if known else ""
        rows["accuracy"] = f"{result.accuracy:.1%}{chance}"
    if "loss" not in result.metrics:
        rows["loss"] = "none: the model diverged, its answers are not finite"
    rows |= {
        name.replace("_", " "): f"{value:.4g}"
        for name, value in result.metrics.items()
        if name != "accuracy"
    }
    for name, field in (("planned", "epsilon_planned"), ("realised", "epsilon_spent")):
        rows[f"ε {name}"] = formatting.format_min_median_max(collect_epsilons([result], field))
    if len(result.accuracy_by_budget) > 1:
        rows["by budget"] = ", ".join(
            f"ε = {budget:g}: {accuracy:.1%}"
            for budget, accuracy in result.accuracy_by_budget.items()
        )
    rows["rounds"] = f"{result.rounds} in {formatting.format_duration(result.seconds)}"
    print_rows(rows)
    if len(result.clients) > 20:
        return
    table = Table(title=terms(result.plan.privacy, result.plan.unit))
    table.add_column("client", no_wrap=True)
    for heading in ("records", "budget", "certified", "K", "σ/C", "refused", "accuracy"):
        table.add_column(heading, justify="right")
    for client in result.clients:
        table.add_row(
            *(client.name, str(client.records), formatting.format_number(client.epsilon_budget)),
            "-" if client.epsilon_spent is None else f"{client.epsilon_spent:.6g}",
            str(client.releases),
            *(formatting.format_number(client.noise_multiplier), str(client.refused)),
            "-" if client.accuracy is None else f"{client.accuracy:.1%}",
        )
    Console().print(table)


def plan(tuning: "Mapping[str, Any] | None") -> str:
    """Whose choice a plan is, and what it lets expect.

    >>> plan(None)
    'published'
    """
    if tuning is None:
        return "published"
    from pacdp.tuning import PrivacyTerms

    promised = tuning.get("privacy")
    terms = "" if promised is None else f" ({PrivacyTerms.model_validate(promised)})"
    said = f"{expected(tuning['expected'])} expected there{terms}"
    return f"tuned on {tuning['proxy']['name']}: {said}"


def expected(found: "Mapping[str, Any]") -> str:
    """A mean with its deviation over seeds.

    >>> expected({"metric": "accuracy", "mean": 0.9, "deviation": 0.02, "seeds": [5, 6]})
    '90.0 ± 2.0 %'
    """
    return formatting.format_mean_deviation(found["mean"], found["deviation"], found["metric"])


def representation(plan: "Plan") -> str:
    """What the model sees instead of the records, and what that was made from."""
    settings = plan.representation
    if settings is None:
        return "none: the model sees the records"
    size = f"{plan.shape[0]} numbers"
    made_from = plan.provenance
    source = made_from["made by"] if made_from["records"] == "none" else made_from["records"]
    return f"{settings.name}, {size}, whitening {settings.whitening:g}; from {source}"


def terms(privacy: Any, unit: str) -> str:
    """What every ε of a table stands for."""
    scope = "" if privacy.scope == "total" else ", budget per release"
    return f"ε at {formatting.format_terms(privacy.delta, privacy.adjacency, unit)}{scope}"


def settings(settings: dict[str, Any]) -> str:
    """The settings of a method in a few words."""
    parts = []
    for name, value in settings.items():
        if name == "curve":
            shown = ", ".join(f"{number:g}" for number in value["coefficients"])
            parts.append(f"F {value['family']} [{shown}]")
        elif name == "schedule":
            parts.append(
                "λ(t) = 1" if value["kind"] == "none" else f"λ(t) down to {value['min_factor']:g}"
            )
        else:
            parts.append(f"{name} = {value}")
    return f"({'; '.join(parts)})" if parts else ""
