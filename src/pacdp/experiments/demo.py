"""The demonstration: four hospitals, four budgets, one model, and no way to overspend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pacdp.errors import BudgetExceededError
from pacdp.experiments.execute import execute
from pacdp.experiments.experiment import Experiment, read_experiment
from pacdp.experiments.prepare import Prepared, prepare
from pacdp.federation import Broadcast, Client, Result
from pacdp.privacy import Guarantee, Ledger

# The paper's budget levels for Heart Disease; who holds which is an example.
EPSILONS = (0.5, 0.05, 0.01, 0.01)
METHODS = ("pac-dp", "fixed", "dp-fedavg", "fedavg")
SEEDS = 10
WORDS = {
    "pac-dp": "PAC-DP: each its own budget, C = F(ε)·λ(t)",
    "fixed": "each its own budget, one C for all",
    "dp-fedavg": "the smallest budget for all, one C",
    "fedavg": "no privacy",
}


@dataclass(frozen=True)
class Contest:
    """Every method's runs, over seeds."""

    results: Mapping[str, Sequence[Result]]

    def accuracies(self, method: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """(seeds, rounds)."""
        return np.array([[row["accuracy"] for row in r.history] for r in self.results[method]])

    @property
    def chance(self) -> float:
        """What always saying the most frequent diagnosis reaches."""
        return float(next(iter(self.results.values()))[0].chance or 0)


def experiment() -> Experiment:
    """The shipped experiment, with the demonstration's budgets."""
    return read_experiment("heart-personalised", changes=[f"privacy.epsilon={list(EPSILONS)}"])


def prepared(method: str, seed: int) -> Prepared:
    """One method, ready to run."""
    made = experiment()
    return prepare(made, method=made.made_method(method), seed=seed)


def open_ledgers(folder: Path, ready: Prepared) -> list[Ledger]:
    """A new ledger for each hospital, each with its own budget."""
    ledgers = []
    for number, task in enumerate(ready.plan.clients):
        budget = ready.plan.budget(number)
        assert budget is not None
        ledgers.append(
            Ledger.create(folder / f"{task.name}.ledger", client=task.name, budget=budget)
        )
    return ledgers


def refusal(ready: Prepared, result: Result, ledgers: Sequence[Ledger]) -> str:
    """What a hospital answers when it is asked for one round more than planned."""
    records = ready.partition.of(ready.dataset)[0]
    client = Client(0, ready.plan, records, book=ledgers[0])
    try:
        client.answer(Broadcast(0, result.model))
    except BudgetExceededError as error:
        return str(error)
    raise AssertionError("a client answered more often than its plan and its budget allow")


def figure(contest: Contest, result: Result) -> Figure:
    """Accuracy over the rounds beside the budgets, spent and not exceeded."""
    picture = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = picture.subplots(1, 2)
    _accuracy(left, contest)
    _budgets(right, result)
    return picture


def _accuracy(axes: Axes, contest: Contest) -> None:
    for method in contest.results:
        values = 100 * contest.accuracies(method)
        rounds = range(1, values.shape[1] + 1)
        mean, spread = values.mean(0), values.std(0, ddof=1)
        (line,) = axes.plot(rounds, mean, label=WORDS[method])
        axes.fill_between(rounds, mean - spread, mean + spread, alpha=0.15, color=line.get_color())
    axes.axhline(100 * contest.chance, color="black", linestyle=":", label="chance")
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy in % (mean ± s.d.)")
    budgets = ", ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    axes.set_title(f"Four hospitals, budgets {budgets}; {SEEDS} seeds")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize="small", ncols=1)


def _budgets(axes: Axes, result: Result) -> None:
    plan = result.plan
    rounds = range(1, plan.rounds + 1)
    # Hospitals with one budget spend alike: one line stands for them all.
    for epsilon in sorted({task.epsilon for task in plan.clients}, reverse=True):
        group = [n for n, task in enumerate(plan.clients) if task.epsilon == epsilon]
        spent = [_epsilon(plan.planned(group[0], number)) for number in rounds]
        names = " and ".join(plan.clients[n].name for n in group)
        (line,) = axes.plot(rounds, spent, marker="o", markersize=3, label=f"{names}: spent")
        axes.axhline(epsilon, color=line.get_color(), linestyle="--", label=f"budget {epsilon:g}")
    axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel(f"certified ε so far (δ = {plan.privacy.delta:g}, {plan.privacy.adjacency})")
    axes.set_title("Each spends its own budget, and not more")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize="small", ncols=2)


def _epsilon(guarantee: Guarantee | None) -> float:
    assert guarantee is not None
    return guarantee.epsilon


def train(ready: Prepared, ledgers: Sequence[Ledger] | None = None) -> Result:
    """Run one method, drawing on ledgers if there are any."""
    return execute(ready, books=ledgers)
