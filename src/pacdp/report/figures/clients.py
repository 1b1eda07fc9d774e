"""The privacy and the accuracy of single clients.

Which client holds which budget is drawn from the seed, so these charts show the run of one seed
and no mean over seeds.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pacdp.experiments import RunResult
from pacdp.federation import ClientResult
from pacdp.formatting import number, score
from pacdp.report.comparison import Comparison, describe_terms
from pacdp.report.figures.base import (
    Chart,
    ChartBuilder,
    Table,
    Tooltip,
    escape_mathtext,
    replace_control_characters,
    shorten,
)
from pacdp.report.figures.palette import series_style

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
    budgets = {client.epsilon_budget for client in clients if client.epsilon_budget is not None}
    if any(client.epsilon_budget is None for client in clients):
        return None
    builder = ChartBuilder(height=3.3)
    axes = builder.axes[0]
    size = 9 if len(clients) <= MOST_NAMES else 5
    kinds = (
        ("budget", "epsilon_budget", "_", size * 1.7, False, series_style(6)),
        ("planned", "epsilon_planned", "o", size, True, series_style(1)),
        ("spent", "epsilon_spent", "o", size * 0.5, False, series_style(0)),
    )
    handles = []
    for label, field, marker, points, hollow, style in kinds:
        # An ε of 0 (nothing was released) has no place on a logarithmic axis.
        shown = [(n, c, getattr(c, field)) for n, c in enumerate(clients, 1) if getattr(c, field)]
        builder.add_points(
            axes,
            [place for place, _, _ in shown],
            [epsilon for _, _, epsilon in shown],
            [Tooltip(_describe_epsilon(client), client.name) for _, client, _ in shown],
            style,
            size=points,
            hollow=hollow,
            marker=marker,
        )
        handles.append(
            Line2D(
                *([], []),
                linestyle="none",
                marker=marker,
                color=style.colour,
                markerfacecolor="none" if hollow else style.colour,
                markersize=min(points, 9),
                label=label,
            )
        )
    builder.use_log_scale(axes, y=True)
    if not result.plan.label:
        builder.set_ticks(axes.yaxis, sorted(budgets))
    _label_clients(builder, axes, clients, f"ε ({terms})")
    builder.add_legend({}, extra=handles)
    rows = [
        (
            client.name,
            *(number(getattr(client, field), 6) for _, field, *_ in kinds),
            number(client.epsilon_left),
        )
        for client in clients
    ]
    idle = sum(not client.epsilon_spent for client in clients)
    return builder.build(
        "ε of each client",
        f"Budget, planned and spent ε by client, sorted by budget, at {terms}."
        + (f" {idle} of them released nothing and have spent no ε." if idle else ""),
        Table(
            ("client", "budget ε", "planned ε", "spent ε", "remaining ε"),
            rows,
            f"ε at {terms}, seed {result.seed}",
        ),
    )


def _describe_epsilon(client: ClientResult) -> str:
    left = client.epsilon_left
    return (
        f"{client.name}: budget ε {client.epsilon_budget:g}, "
        f"planned {number(client.epsilon_planned, 4)}, spent {number(client.epsilon_spent, 4)}"
        + ("" if left is None else f", remaining {number(left)}")
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
    for position, level in enumerate(levels):
        shown = [
            (place, client, 100 * client.accuracy)
            for place, client in enumerate(clients, 1)
            if client.accuracy is not None and (client.epsilon_budget or 0) == level
        ]
        builder.add_points(
            axes,
            [place for place, _, _ in shown],
            [accuracy for _, _, accuracy in shown],
            [Tooltip(_describe_accuracy(client), client.name) for _, client, _ in shown],
            series_style(position),
            size=7 if len(clients) <= MOST_NAMES else 4.5,
        )
    _label_clients(builder, axes, clients, "test accuracy in %")
    note = ""
    if levels != [0] and len(levels) <= MOST_LEVELS:
        styles = {f"budget ε = {level:g}": series_style(n) for n, level in enumerate(levels)}
        builder.add_legend(styles, lines=False)
        note = f" Markers distinguish budgets; ε at {describe_terms(result.plan)}."
    return builder.build(
        "Accuracy of each client",
        "Accuracy of the final model on test records distributed like the client's own, sorted by "
        "budget. Chance differs from client to client: where all records have one label, "
        "predicting it is always right." + note,
        Table(
            ("client", "accuracy"),
            [(client.name, score(client.accuracy, "accuracy")) for client in clients],
            f"seed {result.seed}",
        ),
    )


def _describe_accuracy(client: ClientResult) -> str:
    budget = client.epsilon_budget
    note = "" if budget is None else f" (budget ε {budget:g}, {client.adjacency})"
    return f"{client.name}: {score(client.accuracy, 'accuracy')}{note}"


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
    series = {label: points for label, points in series.items() if points}
    if not series:
        return None
    builder = ChartBuilder()
    axes = builder.axes[0]
    rows = []
    for position, (label, points) in enumerate(series.items()):
        shift = 1.05 ** (position - (len(series) - 1) / 2)
        tooltips = [
            Tooltip(
                f"{label}, {client.name}: signal to noise {number(ratio)} "
                f"(budget ε {budget:g}, {client.adjacency})",
                client.name,
            )
            for client, budget, ratio in points
        ]
        x = [budget * shift for _, budget, _ in points]
        y = [ratio for _, _, ratio in points]
        builder.add_points(axes, x, y, tooltips, comparison.styles[label], alpha=0.8)
        rows += [
            (f"{label}, {c.name}", f"{budget:g}", number(ratio)) for c, budget, ratio in points
        ]
    builder.use_log_scale(axes, x=True, y=True)
    builder.label_axes(axes, f"budget ε ({terms})", "signal-to-noise ratio")
    budgets = {budget for points in series.values() for _, budget, _ in points}
    builder.set_ticks(axes.xaxis, sorted(budgets))
    builder.add_legend({label: comparison.styles[label] for label in series}, lines=False)
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
    names = [escape_mathtext(shorten(client.name)) for client in clients]
    axes.set_xticks(range(1, len(clients) + 1), names)
    crowded = sum(map(len, names)) > 70
    for text in axes.get_xticklabels() if crowded else ():
        text.set(rotation=30, ha="right", rotation_mode="anchor")
    builder.label_axes(axes, "client, sorted by budget", y)
