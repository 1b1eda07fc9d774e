"""The privacy and the accuracy of single clients.

Which client holds which budget is drawn from the seed, so these charts show the run of one seed
and no mean over seeds.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.federation import ClientResult
from pacdp.formatting import format_number, format_score
from pacdp.reporting.comparison import Comparison, describe_terms
from pacdp.reporting.figures.base import (
    Chart,
    ChartBuilder,
    Point,
    Table,
    replace_control_characters,
    shorten,
)
from pacdp.reporting.figures.palette import SeriesStyle, series_style

# More names do not fit below an axis.
MOST_NAMES = 12
MOST_LEVELS = 8


def sort_by_budget(result: RunResult) -> list[ClientResult]:
    """Sort a run's clients by budget, with names that can be shown in a document."""
    clients = [
        client.model_copy(update={"name": replace_control_characters(client.name)})
        for client in result.clients
    ]
    return sorted(clients, key=lambda client: client.epsilon_budget or 0)


def plot_client_epsilon(result: RunResult) -> Chart | None:
    """Plot budget, planned and spent ε of each client; None for a method without a guarantee."""
    clients, terms = sort_by_budget(result), describe_terms(result.plan)
    budgets = collect_epsilons([result], "epsilon_budget")
    if len(budgets) < len(clients):
        return None
    builder = ChartBuilder(height=3.3)
    axes = builder.axes[0]
    size = 9 if len(clients) <= MOST_NAMES else 5
    kinds: dict[str, tuple[SeriesStyle, dict[str, Any]]] = {
        "epsilon_budget": (series_style(6), {"marker": "_", "size": size * 1.7}),
        "epsilon_planned": (series_style(1), {"marker": "o", "size": size, "hollow": True}),
        "epsilon_spent": (series_style(0), {"marker": "o", "size": size * 0.5}),
    }
    for field, (style, options) in kinds.items():
        points = [
            Point(place, epsilon, _describe_epsilon(client), client.name)
            for place, client in enumerate(clients, 1)
            # An ε of 0 (nothing was released) has no place on a logarithmic axis.
            if (epsilon := getattr(client, field))
        ]
        label = field.removeprefix("epsilon_")
        builder.add_points(axes, points, style, label=label, **options)
    builder.use_log_scale(axes, y=True)
    if not result.plan.label:
        builder.set_ticks(axes.yaxis, sorted(set(budgets)))
    _label_clients(builder, axes, clients, f"ε ({terms})")
    rows = []
    for client in clients:
        epsilons = [format_number(getattr(client, field), 6) for field in kinds]
        rows.append((client.name, *epsilons, format_number(client.epsilon_left)))
    idle = sum(not client.epsilon_spent for client in clients)
    headings = ("client", "budget ε", "planned ε", "spent ε", "remaining ε")
    return builder.build(
        "ε of each client",
        f"Budget, planned and spent ε by client, sorted by budget, at {terms}."
        + (f" {idle} of them released nothing and have spent no ε." if idle else ""),
        Table(headings, rows, f"ε at {terms}, seed {result.seed}"),
    )


def _describe_epsilon(client: ClientResult) -> str:
    left = client.epsilon_left
    return (
        f"{client.name}: budget ε {client.epsilon_budget:g}, "
        f"planned {format_number(client.epsilon_planned, 4)}, "
        f"spent {format_number(client.epsilon_spent, 4)}"
        + ("" if left is None else f", remaining {format_number(left)}")
        + f" ({client.adjacency})"
    )


def plot_client_accuracy(result: RunResult) -> Chart | None:
    """Plot the accuracy that each client sees; None for regression.

    Chance is not drawn, since it differs from client to client.
    """
    clients = sort_by_budget(result)
    if all(client.accuracy is None for client in clients):
        return None
    builder = ChartBuilder(height=3.0)
    axes = builder.axes[0]
    levels = sorted({client.epsilon_budget or 0 for client in clients})
    labelled = levels != [0] and len(levels) <= MOST_LEVELS
    size = 7 if len(clients) <= MOST_NAMES else 4.5
    for position, level in enumerate(levels):
        points = [
            Point(place, 100 * client.accuracy, _describe_accuracy(client), client.name)
            for place, client in enumerate(clients, 1)
            if client.accuracy is not None and (client.epsilon_budget or 0) == level
        ]
        label = f"budget ε = {level:g}" if labelled else ""
        builder.add_points(axes, points, series_style(position), label=label, size=size)
    _label_clients(builder, axes, clients, "test accuracy in %")
    note = f" Markers distinguish budgets; ε at {describe_terms(result.plan)}." if labelled else ""
    rows = [(client.name, format_score(client.accuracy, "accuracy")) for client in clients]
    return builder.build(
        "Accuracy of each client",
        "Accuracy of the final model on test records distributed like the client's own, sorted by "
        "budget. Chance differs from client to client: where all records have one label, "
        f"predicting it is always right.{note}",
        Table(("client", "accuracy"), rows, f"seed {result.seed}"),
    )


def _describe_accuracy(client: ClientResult) -> str:
    budget = client.epsilon_budget
    note = "" if budget is None else f" (budget ε {budget:g}, {client.adjacency})"
    return f"{client.name}: {format_score(client.accuracy, 'accuracy')}{note}"


def plot_signal_to_noise(comparison: Comparison) -> Chart | None:
    """Plot each client's best-case signal-to-noise ratio; None where nothing is noised."""
    terms = comparison.terms
    series = {
        label: [
            (client, client.epsilon_budget, client.signal_to_noise)
            for client in sort_by_budget(results[0])
            if client.signal_to_noise is not None and client.epsilon_budget is not None
        ]
        for label, results in comparison.groups.items()
    }
    series = {label: clients for label, clients in series.items() if clients}
    if not series:
        return None
    builder = ChartBuilder()
    axes = builder.axes[0]
    rows, budgets = [], set()
    for position, (label, clients) in enumerate(series.items()):
        shift = 1.05 ** (position - (len(series) - 1) / 2)
        points = []
        for client, budget, ratio in clients:
            name = f"{label}, {client.name}"
            note = f"(budget ε {budget:g}, {client.adjacency})"
            text = f"{name}: signal to noise {format_number(ratio)} {note}"
            points.append(Point(budget * shift, ratio, text, client.name))
            rows.append((name, f"{budget:g}", format_number(ratio)))
            budgets.add(budget)
        builder.add_points(axes, points, comparison.styles[label], label=label, alpha=0.8)
    builder.use_log_scale(axes, x=True, y=True)
    builder.label_axes(axes, f"budget ε ({terms})", "signal-to-noise ratio")
    builder.set_ticks(axes.xaxis, sorted(budgets))
    return builder.build(
        "Signal-to-noise ratio",
        "Norm of the largest possible clipped sum over the norm of its noise, for each client of "
        f"the first seed. Below 1, noise dominates. ε at {terms}.",
        Table(("method, client", "budget ε", "signal-to-noise ratio"), rows, f"ε at {terms}"),
    )


def _label_clients(
    builder: ChartBuilder, axes: Axes, clients: Sequence[ClientResult], y: str
) -> None:
    """Label the x axis with the clients' names while they fit, else with their positions."""
    axes.set_xlim(0.4, len(clients) + 0.6)
    axes.grid(visible=False, axis="x")
    if len(clients) > MOST_NAMES:
        builder.use_integer_ticks(axes)
        builder.label_axes(axes, "position of the client when sorted by budget", y)
        return
    names = [shorten(client.name) for client in clients]
    axes.set_xticks(range(1, len(clients) + 1), names)
    crowded = sum(map(len, names)) > 70
    for text in axes.get_xticklabels() if crowded else ():
        text.set(rotation=30, ha="right", rotation_mode="anchor")
    builder.label_axes(axes, "client, sorted by budget", y)
