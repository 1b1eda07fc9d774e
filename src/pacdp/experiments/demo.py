"""The demonstration: four hospitals, four budgets, one training plan, and no way to overspend."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from pacdp.errors import BudgetExceededError
from pacdp.privacy import DEFAULT_DELTA, Adjacency, Guarantee, Ledger, Release, account, calibrate

ROUNDS = 20
LOCAL_EPOCHS = 5
ADJACENCY = Adjacency.ZERO_OUT


@dataclass(frozen=True)
class Hospital:
    """A client: its records (UCI Heart Disease, complete cases) and the ε it chose."""

    name: str
    records: int
    epsilon: float


# The paper's budget levels for Heart Disease; who holds which is an example.
HOSPITALS = (
    Hospital("Cleveland", 303, 0.5),
    Hospital("Hungary", 261, 0.05),
    Hospital("Switzerland", 46, 0.01),
    Hospital("Long Beach", 130, 0.01),
)


def plan() -> dict[Hospital, Release]:
    """Each hospital's releases over the whole training, at the noise its budget asks for.

    >>> [release.count for release in plan().values()]
    [100, 100, 100, 100]
    """
    budgets = [hospital.epsilon for hospital in HOSPITALS]
    noise = calibrate(epsilon=budgets, releases=ROUNDS * LOCAL_EPOCHS, adjacency=ADJACENCY)
    return {hospital: noise.release(client) for client, hospital in enumerate(HOSPITALS)}


def open_ledgers(folder: Path) -> dict[Hospital, Ledger]:
    """A new ledger for each hospital, each with its own budget."""
    return {
        hospital: Ledger.create(
            folder / f"{hospital.name.lower().replace(' ', '-')}.ledger",
            client=hospital.name,
            budget=Guarantee(epsilon=hospital.epsilon, adjacency=ADJACENCY),
        )
        for hospital in HOSPITALS
    }


def spend(ledgers: dict[Hospital, Ledger], releases: dict[Hospital, Release]) -> Iterator[int]:
    """Debit round after round as a training would, and yield each round when it is paid for."""
    for number in range(ROUNDS):
        for hospital, ledger in ledgers.items():
            ledger.reserve(releases[hospital].times(LOCAL_EPOCHS), run="demo")
        yield number


def refusal(ledger: Ledger, release: Release) -> str:
    """What the ledger answers when it is asked for one round more than planned."""
    try:
        ledger.reserve(release.times(LOCAL_EPOCHS), run="demo")
    except BudgetExceededError as error:
        return str(error)
    raise AssertionError("the ledger let a release through that its budget does not cover")


def figure(releases: dict[Hospital, Release]) -> Figure:
    """The ε that each hospital has spent after each round, below the budget it chose."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    rounds = range(1, ROUNDS + 1)
    # Hospitals with one budget spend alike: one line stands for them all.
    for epsilon in sorted({hospital.epsilon for hospital in HOSPITALS}, reverse=True):
        group = [hospital for hospital in HOSPITALS if hospital.epsilon == epsilon]
        release = releases[group[0]]
        spent = [account(release.times(LOCAL_EPOCHS * number)).epsilon for number in rounds]
        names = " and ".join(hospital.name for hospital in group)
        (line,) = axes.plot(rounds, spent, marker="o", markersize=3, label=f"{names}: spent")
        axes.axhline(
            epsilon, color=line.get_color(), linestyle="--", label=f"{names}: budget {epsilon:g}"
        )
    axes.set_yscale("log")
    axes.set_xticks(range(0, ROUNDS + 1, 5))
    axes.set_xlabel(f"round ({LOCAL_EPOCHS} releases per record each)")
    axes.set_ylabel(f"certified ε so far (δ = {DEFAULT_DELTA:g}, {ADJACENCY})")
    axes.set_title("Every hospital spends its own budget, and not more")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure
