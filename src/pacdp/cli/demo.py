"""``pacdp demo``: the whole idea on four hospitals."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pacdp.errors import InputError


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the ledgers and the picture.")] = Path(
        "pacdp-demo"
    ),
) -> None:
    """Four hospitals with different budgets train one model; each ledger stops at its budget."""
    # Only the demo trains and draws, so only the demo waits for torch and matplotlib.
    from pacdp.experiments import demo
    from pacdp.experiments.execute import Spread
    from pacdp.federation import Result

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file, must be a folder")
    console = Console()
    # The bar is for a person who waits; a file or a pipe gets the result alone.
    runs = [(method, seed) for method in demo.METHODS for seed in range(demo.SEEDS)]
    results: dict[str, list[Result]] = {method: [] for method in demo.METHODS}
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ledgers-", dir=out))
    ready = demo.prepared("pac-dp", 0)
    ledgers = demo.open_ledgers(folder, ready)
    for method, seed in track(runs, "Training", console=console, disable=not console.is_terminal):
        first = (method, seed) == runs[0]
        made = ready if first else demo.prepared(method, seed)
        # One run draws on real ledgers, in files; the others keep their books in memory.
        results[method].append(demo.train(made, ledgers if first else None))
    contest = demo.Contest(results)
    plan = ready.plan
    terms = f"ε at δ = {plan.privacy.delta:g}, {plan.privacy.adjacency}"

    table = Table(title=f"{plan.rounds} rounds, {demo.SEEDS} seeds; {terms}")
    table.add_column("method", no_wrap=True)
    table.add_column("what it is")
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("certified ε", justify="right", no_wrap=True)
    for method, found in results.items():
        spread = Spread.of([100 * result.metrics["accuracy"] for result in found])
        spent = [client["epsilon_realised"] for client in found[0].clients()]
        shown = "none" if None in spent else f"{min(spent):.3g} to {max(spent):.3g}"
        if None not in spent and max(spent) - min(spent) < 1e-6:
            shown = f"{max(spent):.3g}"
        table.add_row(
            method, demo.WORDS[method], f"{spread.mean:.1f} ± {spread.deviation:.1f} %", shown
        )
    table.caption = (
        "The largest hospital holds the largest budget here; who holds which decides much. "
        "Over all assignments: pacdp compare heart-personalised"
    )
    table.add_row("chance", "always the most frequent diagnosis", f"{100 * contest.chance:.1f} %")
    console.print(table)

    table = Table(title=f"PAC-DP, from the hospitals' own ledgers; {terms}")
    table.add_column("hospital", no_wrap=True)
    for heading in ("records", "budget ε", "spent ε", "releases", "noise σ/C", "C, first round"):
        table.add_column(heading, justify="right")
    for task, ledger in zip(plan.clients, ledgers, strict=True):
        state = ledger.filter
        table.add_row(
            *(task.name, str(task.records), f"{task.epsilon:g}"),
            *(f"{state.realised.epsilon:.6g}", str(state.spent.total())),
            f"{task.noise_multiplier:.2f}",
            f"{plan.made_method.bound(task.epsilon, round=0, rounds=plan.rounds):.3f}",
        )
    console.print(table)
    console.print("One round more is refused by the client itself:", style="bold")
    console.print(demo.refusal(ready, results["pac-dp"][0], ledgers), highlight=False)
    picture = out / "demo.png"
    demo.figure(contest, results["pac-dp"][0]).savefig(picture, dpi=150)
    console.print(f"\nLedgers: {folder}\nPicture: {picture}", highlight=False)
