"""Format plans and results for the terminal."""

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pacdp import formatting
from pacdp.cli.output import print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pacdp.experiments import RunResult
    from pacdp.federation import Plan


def print_result(result: "RunResult") -> None:
    """Print the result of a run: metrics, guarantees, and a row for each level and client."""
    from pacdp.cli.levels import cost_table
    from pacdp.experiments.levels import format_spent_by_unit, summarise_spent
    from pacdp.experiments.results import collect_epsilons

    rows = {"method": method(result.plan)}
    if result.plan.tuning is not None:
        rows["configuration"] = plan(result.plan.tuning)
    metric = result.plan.task.metric
    if result.before_private_data is not None:
        before = result.before_private_data.get(metric)
        shown = f"{before:.1%}" if metric == "accuracy" else formatting.format_number(before, 4)
        rows["initial model"] = f"{shown}, before any private data was used"
    if result.accuracy is not None:
        # Only for the headline metric of a task is there a baseline.
        known = metric == "accuracy" and result.chance is not None
        chance = f" (chance {result.chance:.1%})" if known else ""
        rows["accuracy"] = f"{result.accuracy:.1%}{chance}"
    if "loss" not in result.metrics:
        rows["loss"] = "none: the model diverged, its predictions are not finite"
    rows |= {
        name.replace("_", " "): f"{value:.4g}"
        for name, value in result.metrics.items()
        if name != "accuracy"
    }
    for name in ("budget", "planned", "spent"):
        field = f"epsilon_{name}"
        rows[f"{name} ε"] = formatting.format_min_median_max(collect_epsilons([result], field))
    levels = summarise_spent(result)
    if levels:
        rows[f"ε over {result.plan.unit}s"] = format_spent_by_unit(result)
    if len(result.accuracy_by_budget) > 1:
        rows["by budget"] = ", ".join(
            f"ε = {budget:g}: {accuracy:.1%}"
            for budget, accuracy in result.accuracy_by_budget.items()
        )
    if result.accuracy_by_level:
        rows["accuracy by level"] = ", ".join(
            f"ε = {level:g}: {accuracy:.1%}" for level, accuracy in result.accuracy_by_level.items()
        )
    rows["rounds"] = f"{result.rounds} in {formatting.format_duration(result.seconds)}"
    if result.plan.algorithm.private:
        rows["noise"] = "generated from the seed: a simulation, which protects nobody"
    print_rows(rows)
    if levels:
        Console().print(cost_table(result.plan, levels, "spent"))
    if len(result.clients) > 20:
        return
    table = empty_table(
        result.plan,
        "client",
        ("records", "budget ε", "spent ε", "releases", "noise σ/C", "refused", "accuracy"),
        caption="accuracy: on test records like the client's own",
    )
    for client in result.clients:
        table.add_row(
            *(client.name, str(client.records), formatting.format_number(client.epsilon_budget)),
            "-" if client.epsilon_spent is None else f"{client.epsilon_spent:.6g}",
            str(client.releases),
            *(formatting.format_number(client.noise_multiplier), str(client.refused)),
            "-" if client.accuracy is None else f"{client.accuracy:.1%}",
        )
    Console().print(table)


def empty_table(plan: "Plan", rows: str, headings: "Sequence[str]", *, caption: str) -> Table:
    """Return a table without rows, narrow enough for 80 columns.

    ``rows`` is the heading of the first column. A space in another heading starts a new line.
    """
    table = Table(
        title=terms(plan.privacy, plan.unit),
        caption=caption,
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    table.add_column(rows, no_wrap=True)
    for heading in headings:
        # Where the terminal is too narrow, a number is continued on the next line, never cut.
        table.add_column(heading.replace(" ", "\n"), justify="right", overflow="fold")
    return table


def plan(tuning: "Mapping[str, Any] | None") -> str:
    """Describe where the settings of a plan come from, and the score expected of tuned ones.

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


def expected(score: "Mapping[str, Any]") -> str:
    """Return a mean with its deviation over seeds.

    >>> expected({"metric": "accuracy", "mean": 0.9, "deviation": 0.02, "seeds": [5, 6]})
    '90.0 ± 2.0 %'
    """
    return formatting.format_mean_deviation(score["mean"], score["deviation"], score["metric"])


def representation(plan: "Plan") -> str:
    """Describe the features that the model is trained on, and what they were made from."""
    settings = plan.representation
    if settings is None:
        return "none: the model sees the records"
    size = f"{plan.shape[0]} numbers"
    made_from = plan.provenance
    source = made_from["made by"] if made_from["records"] == "none" else made_from["records"]
    return f"{settings.name}, {size}, whitening {settings.whitening:g}; from {source}"


def terms(privacy: Any, unit: str) -> str:
    """Return the δ, adjacency and unit that apply to every ε of a table."""
    scope = "" if privacy.scope == "total" else ", budget per release"
    return f"ε at {formatting.format_terms(privacy.delta, privacy.adjacency, unit)}{scope}"


def method(plan: "Plan") -> str:
    """Describe a method and its settings in one line."""
    parts = []
    for name, value in plan.settings.items():
        if name == "curve":
            parts.append(_curve(value))
        elif name == "schedule":
            parts.append(
                "λ(t) = 1" if value["kind"] == "none" else f"λ(t) from 1 to {value['min_factor']:g}"
            )
        elif name != "allow_plan_mismatch" or value:
            parts.append(f"{name} = {value}")
    return f"{plan.method}: {', '.join(parts)}" if parts else plan.method


def _curve(curve: "Mapping[str, Any]") -> str:
    """Return the formula of F.

    >>> _curve({"family": "power", "coefficients": [0.99, 0.38]})
    'F(ε) = 0.99·ε^0.38'
    >>> _curve({"family": "quadratic", "coefficients": [-0.5, 1.1, 0.1]})
    'F(ε) = -0.5·ε² + 1.1·ε + 0.1'
    >>> _curve({"family": "piecewise", "coefficients": [0.01, 0.2, 10.0, 3.0]})
    'F(ε) piecewise: 0.2 at ε = 0.01, 3 at ε = 10'
    """
    numbers = [f"{number:.4g}" for number in curve["coefficients"]]
    if curve["family"] == "power":
        return "F(ε) = {}·ε^{}".format(*numbers)
    if curve["family"] == "quadratic":
        return "F(ε) = {}·ε² + {}·ε + {}".format(*numbers).replace("+ -", "- ")
    knots = zip(numbers[::2], numbers[1::2], strict=True)
    return "F(ε) piecewise: " + ", ".join(f"{bound} at ε = {epsilon}" for epsilon, bound in knots)
