"""What each client is promised, and what it gets.

Who holds which budget is drawn from the seed, so these show one run and not a mean over seeds.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.federation import ClientResult
from pacdp.formatting import number, score
from pacdp.report.comparison import Arms, checked, terms_of
from pacdp.report.figures.base import Picture, Sketch, Table, Tip, plain, printable, short
from pacdp.report.figures.palette import look, looks_of

# More names than these do not fit below an axis.
MOST_NAMES = 12


def ordered(outcome: RunResult) -> list[ClientResult]:
    """A run's clients by budget, and within one as they come."""
    named = [c.model_copy(update={"name": printable(c.name)}) for c in outcome.clients]
    return sorted(named, key=lambda client: client.epsilon_budget or 0)


def client_epsilon(outcome: RunResult) -> Picture | None:
    """Budget, planned and realised ε of each client; None where a method has no guarantee."""
    clients, said = ordered(outcome), terms_of(outcome.plan)
    if any(client.epsilon_budget is None for client in clients):
        return None
    sketch = Sketch(height=3.3)
    axes = sketch.axes[0]
    size = 9 if len(clients) <= MOST_NAMES else 5
    kinds = (
        ("budget", "epsilon_budget", "_", size * 1.7, False, look(6)),
        ("planned", "epsilon_planned", "o", size, True, look(1)),
        ("realised", "epsilon_spent", "o", size * 0.5, False, look(0)),
    )
    handles = []
    for kind, field, marker, points, hollow, chosen in kinds:
        # An ε of 0 has no place on a logarithmic axis: nothing was released.
        there = [(n, c) for n, c in enumerate(clients, 1) if getattr(c, field)]
        tips = [Tip(_promise(client), client.name) for _, client in there]
        heights = [getattr(client, field) for _, client in there]
        sketch.points(
            *(axes, [n for n, _ in there], heights, tips, chosen),
            size=points,
            hollow=hollow,
            marker=marker,
        )
        face = "none" if hollow else chosen.colour
        handles.append(
            Line2D(
                *([], []),
                linestyle="none",
                marker=marker,
                color=chosen.colour,
                markerfacecolor=face,
                markersize=min(points, 9),
                label=kind,
            )
        )
    sketch.logarithmic(axes, y=True)
    if not outcome.plan.label:
        sketch.ticks(axes.yaxis, sorted(set(collect_epsilons([outcome], "epsilon_budget"))))
    _names(sketch, axes, clients, f"ε ({said})")
    sketch.place(handles)
    rows = [
        (
            client.name,
            *(number(getattr(client, field), 6) for _, field, *_ in kinds),
            number(client.epsilon_left),
        )
        for client in clients
    ]
    unseen = sum(not client.epsilon_spent for client in clients)
    return sketch.done(
        "ε of each client",
        f"Budget, planned and realised ε by client, ordered by budget, at {said}."
        + (f" {unseen} of them released nothing and have no realised ε." if unseen else ""),
        Table(
            ("client", "budget ε", "planned ε", "realised ε", "left ε"),
            tuple(rows),
            f"ε at {said}, seed {outcome.plan.seed}",
        ),
    )


def _promise(client: ClientResult) -> str:
    left = client.epsilon_left
    return (
        f"{client.name}: budget ε {client.epsilon_budget:g}, "
        f"planned {number(client.epsilon_planned, 4)}, "
        f"realised {number(client.epsilon_spent, 4)}"
        + ("" if left is None else f", left {number(left)}")
        + f" ({client.adjacency})"
    )


def client_accuracy(outcome: RunResult) -> Picture | None:
    """The accuracy that each client sees; None for regression.

    Chance is another for each of them, and is not drawn.
    """
    clients = ordered(outcome)
    there = [(n, c) for n, c in enumerate(clients, 1) if c.accuracy is not None]
    if not there:
        return None
    sketch = Sketch(height=3.0)
    axes = sketch.axes[0]
    levels = sorted({client.epsilon_budget or 0 for client in clients})
    for place, level in enumerate(levels):
        mine = [(n, c) for n, c in there if (c.epsilon_budget or 0) == level]
        tips = [Tip(_seen(client), client.name) for _, client in mine]
        heights = [100 * (client.accuracy or 0) for _, client in mine]
        size = 7 if len(clients) <= MOST_NAMES else 4.5
        sketch.points(axes, [n for n, _ in mine], heights, tips, look(place), size=size)
    _names(sketch, axes, clients, "test accuracy in %")
    if levels != [0] and len(levels) <= 8:
        said = terms_of(outcome.plan)
        entries = {f"budget ε = {level:g}": look(n) for n, level in enumerate(levels)}
        sketch.legend(entries, lines=False)
        note = f" Marks tell budgets apart; ε at {said}."
    else:
        note = ""
    return sketch.done(
        "Accuracy of each client",
        "What the final model reaches on test records like a client's own, ordered by budget. "
        "Chance is another for each: where all have one diagnosis, saying it is always right."
        + note,
        Table(
            ("client", "accuracy"),
            tuple((client.name, score(client.accuracy, "accuracy")) for client in clients),
            f"seed {outcome.plan.seed}",
        ),
    )


def _seen(client: ClientResult) -> str:
    budget = client.epsilon_budget
    asked = "" if budget is None else f" (budget ε {budget:g}, {client.adjacency})"
    return f"{client.name}: {score(client.accuracy, 'accuracy')}{asked}"


def signal_to_noise(arms: Arms) -> Picture | None:
    """The best case of a release of each client over its noise; None where nothing is noised."""
    looks, plan = looks_of(checked(arms)), next(iter(arms.values()))[0].plan
    said = terms_of(plan)
    noised = {
        label: [
            client
            for client in ordered(outcomes[0])
            if client.signal_to_noise is not None and client.epsilon_budget is not None
        ]
        for label, outcomes in arms.items()
    }
    noised = {label: clients for label, clients in noised.items() if clients}
    if not noised:
        return None
    sketch = Sketch()
    axes = sketch.axes[0]
    for place, (label, clients) in enumerate(noised.items()):
        shift = 1.05 ** (place - (len(noised) - 1) / 2)
        tips = [
            Tip(
                f"{label}, {client.name}: signal to noise {number(client.signal_to_noise)} "
                f"(budget ε {client.epsilon_budget:g}, {client.adjacency})",
                client.name,
            )
            for client in clients
        ]
        x = [(client.epsilon_budget or 0) * shift for client in clients]
        y = [client.signal_to_noise or 0 for client in clients]
        sketch.points(axes, x, y, tips, looks[label], alpha=0.8)
    sketch.logarithmic(axes, x=True, y=True)
    sketch.label(axes, f"budget ε ({said})", "signal over noise (ratio)")
    every = [client.epsilon_budget or 0 for clients in noised.values() for client in clients]
    sketch.ticks(axes.xaxis, sorted(set(every)))
    sketch.legend({label: looks[label] for label in noised}, lines=False)
    rows = [
        (
            f"{label}, {client.name}",
            f"{client.epsilon_budget:g}",
            number(client.signal_to_noise),
        )
        for label, clients in noised.items()
        for client in clients
    ]
    return sketch.done(
        "Signal to noise",
        "The length of the largest possible signal of one release over that of its noise, for each "
        f"client of the first seed. Below 1 noise is the longer one. ε at {said}.",
        Table(("method, client", "budget ε", "signal to noise"), tuple(rows), f"ε at {said}"),
    )


def _names(sketch: Sketch, axes: Axes, clients: Sequence[ClientResult], y: str) -> None:
    """Clients along an axis: by name while names fit, else by their place."""
    axes.set_xlim(0.4, len(clients) + 0.6)
    axes.grid(visible=False, axis="x")
    if len(clients) > MOST_NAMES:
        sketch.whole(axes)
        sketch.label(axes, "client, by its place when ordered by budget", y)
        return
    names = [plain(short(client.name)) for client in clients]
    crowded = sum(map(len, names)) > 70
    axes.set_xticks(range(1, len(clients) + 1), names)
    for text in axes.get_xticklabels() if crowded else ():
        text.set(rotation=30, ha="right", rotation_mode="anchor")
    sketch.label(axes, "client, ordered by budget", y)
