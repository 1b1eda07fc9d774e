"""The demonstration: four hospitals with different budgets train one model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pacdp.curve import Curve
from pacdp.errors import BudgetExceededError
from pacdp.experiments import Experiment, PreparedRun, prepare_run, read_experiment
from pacdp.experiments.offline import make_proxy_task
from pacdp.federation import Broadcast, Client, Plan, Result
from pacdp.offline import fit_curve
from pacdp.paper.figures.studies import draw_band
from pacdp.privacy import Guarantee, SQLiteLedger
from pacdp.progress import Progress, ignore_progress
from pacdp.reporting import Comparison, render_page
from pacdp.reporting.comparison import describe_terms
from pacdp.storage import write_atomically

# The paper's budget levels for Heart Disease; their assignment to hospitals is an example.
EPSILONS = (0.5, 0.05, 0.01, 0.01)
SEEDS = 10
METHODS = {
    "pac-dp": "PAC-DP: individual budgets, C = F(ε)·λ(t)",
    "fixed": "individual budgets, one C for all",
    "dp-fedavg": "the smallest budget for all, one C",
    "nbafl": "noise added once, to a clipped update",
    "rpdp-fl": "one noise level, budgets by sampling records",
    "cgm-median": "C follows the median norm, paid from the budget",
    "aqc": "one C follows a quantile, paid from the budget",
    "fedavg": "no privacy",
}
# More lines would overlap; the report shows all methods.
DRAWN = ("pac-dp", "fixed", "dp-fedavg", "fedavg")


def load_demo_experiment() -> Experiment:
    """Read the experiment with the budgets of the demonstration."""
    return read_experiment("heart-personalised", changes=[f"privacy.epsilon={list(EPSILONS)}"])


def fit_demo_curve(experiment: Experiment, progress: Progress = ignore_progress) -> Curve:
    """Fit F by hundreds of trainings on synthetic records."""
    return fit_curve(make_proxy_task(experiment), experiment.offline, progress=progress)


def prepare_method(experiment: Experiment, curve: Curve, method: str, seed: int) -> PreparedRun:
    """Prepare a run of one method."""
    settings = {"curve": curve} if method == "pac-dp" else {}
    return prepare_run(experiment, method=experiment.build_method(method, settings), seed=seed)


def open_ledgers(folder: Path, plan: Plan) -> list[SQLiteLedger]:
    """Create a ledger for each hospital, with its budget."""
    ledgers = []
    for number, client in enumerate(plan.clients):
        budget = plan.budget(number)
        assert budget is not None
        path = folder / f"{client.name}.ledger"
        ledgers.append(SQLiteLedger.create(path, client=client.name, budget=budget))
    return ledgers


def request_extra_round(
    prepared: PreparedRun, result: Result, ledgers: Sequence[SQLiteLedger]
) -> str:
    """Ask a hospital for one round more than planned, and return its refusal."""
    records = prepared.partition.client_records(prepared.dataset)[0]
    client = Client(0, prepared.plan, records, ledger=ledgers[0])
    try:
        client.answer(Broadcast(0, result.model))
    except BudgetExceededError as error:
        return str(error)
    raise AssertionError("a client has answered more often than its plan and its budget allow")


def write_demo_report(path: Path, comparison: Comparison, curve: Curve, description: str) -> None:
    """Write the report of the demonstration."""
    html = render_page(
        "Four hospitals, four budgets",
        comparison,
        description=description,
        curve=curve,
        commands=["pacdp demo"],
        notes=[
            "The largest hospital has the largest budget in this example, and the server weights "
            "clients by inverse noise for every method. Both have a large effect. For an average "
            "over all assignments of budgets, run: pacdp compare heart-personalised."
        ],
    )
    write_atomically(path, html)


def draw_figure(comparison: Comparison) -> Figure:
    """Draw the accuracy by round, and the budgets as they are spent."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accuracy(left, comparison)
    _draw_budgets(right, comparison.plan)
    return figure


def _draw_accuracy(axes: Axes, comparison: Comparison) -> None:
    for method in DRAWN:
        stats, style = comparison.metric_by_round(method), comparison.styles[method]
        mean = 100 * np.array([point.mean for point in stats.values()])
        deviation = 100 * np.array([point.deviation for point in stats.values()])
        options = {"label": METHODS[method], "markersize": 4}
        draw_band(axes, style, list(stats), mean, deviation, alpha=0.12, **options)
    assert comparison.baseline is not None
    axes.axhline(100 * comparison.baseline, color="black", linestyle=":", label="majority class")
    budgets = ", ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    axes.set(
        xlabel="round",
        ylabel="test accuracy in % (mean ± s.d.)",
        title=f"Four hospitals, budgets {budgets}; {SEEDS} seeds",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize="small", ncols=1)


def _draw_budgets(axes: Axes, plan: Plan) -> None:
    rounds = range(1, plan.rounds + 1)
    # Hospitals with the same budget spend it in the same way, and share a line.
    for epsilon in sorted({client.epsilon for client in plan.clients}, reverse=True):
        group = [n for n, client in enumerate(plan.clients) if client.epsilon == epsilon]
        spent = [_epsilon(plan.planned_guarantee(group[0], number)) for number in rounds]
        names = " and ".join(plan.clients[n].name for n in group)
        (line,) = axes.plot(rounds, spent, marker="o", markersize=3, label=f"{names}: spent")
        axes.axhline(epsilon, color=line.get_color(), linestyle="--", label=f"budget {epsilon:g}")
    axes.set(yscale="log", xlabel="round", title="No hospital exceeds its own budget")
    axes.set_ylabel(f"certified ε so far ({describe_terms(plan)})")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize="small", ncols=2)


def _epsilon(guarantee: Guarantee | None) -> float:
    assert guarantee is not None
    return guarantee.epsilon
