"""``pacdp demo``: the whole idea on four hospitals."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pacdp.privacy import DEFAULT_DELTA


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the ledgers and the picture.")] = Path(
        "pacdp-demo"
    ),
) -> None:
    """Four hospitals with different budgets: their noise, their ledgers, and a refusal."""
    # Only the demo draws, so only the demo waits for matplotlib.
    from pacdp.experiments import demo

    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ledgers-", dir=out))
    console = Console()
    releases = demo.plan()
    ledgers = demo.open_ledgers(folder)
    rounds = demo.spend(ledgers, releases)
    # The bar is for a person who waits; a file or a pipe gets the result alone.
    for _ in track(
        rounds, "Spending", demo.ROUNDS, console=console, disable=not console.is_terminal
    ):
        pass
    table = Table(
        title=f"{demo.ROUNDS} rounds of {demo.LOCAL_EPOCHS} local epochs; "
        f"ε at δ = {DEFAULT_DELTA:g}, {demo.ADJACENCY}"
    )
    table.add_column("hospital", no_wrap=True)
    for heading in ("records", "budget ε", "releases", "noise σ/C", "spent ε"):
        table.add_column(heading, justify="right")
    for hospital, ledger in ledgers.items():
        state = ledger.filter
        table.add_row(
            hospital.name,
            str(hospital.records),
            f"{hospital.epsilon:g}",
            str(state.spent.total()),
            f"{releases[hospital].noise_multiplier:.2f}",
            f"{state.realised.epsilon:.6g}",
        )
    console.print(table)
    hospital = demo.HOSPITALS[0]
    console.print("One round more is refused by the client's own ledger:", style="bold")
    console.print(demo.refusal(ledgers[hospital], releases[hospital]), highlight=False)
    picture = out / "budgets.png"
    demo.figure(releases).savefig(picture, dpi=150)
    console.print(f"\nLedgers: {folder}\nPicture: {picture}", highlight=False)
