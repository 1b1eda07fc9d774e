"""``pacdp ledger``: read, check and govern a client's ledger."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from pacdp.privacy import SQLiteLedger

app = typer.Typer(no_args_is_help=True, help="Read, check and govern a client's ledger.")

LedgerPath = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger file.")]
Head = Annotated[
    str | None,
    typer.Option(help="A head noted earlier: a ledger that does not contain it is refused."),
]
# Columns of the CSV export; an entry fills those its kind has.
COLUMNS = (
    *("sequence", "kind", "time", "client", "run", "label", "epsilon", "delta", "adjacency"),
    *("noise_multiplier", "sensitivity", "count", "sampling_rate", "unit", "reason", "hash"),
)


@app.command()
def create(
    path: LedgerPath,
    client: Annotated[str, typer.Option(help="Whose ledger it is.")],
    epsilon: Annotated[float, typer.Option(help="The budget, > 0, for all runs together.")],
    delta: options.Delta = options.DEFAULT_DELTA,
    adjacency: options.AdjacencyName = options.DEFAULT_ADJACENCY,
    unit: Annotated[
        str, typer.Option(help="What ε protects: a record, or a patient with several records.")
    ] = "record",
) -> None:
    """Make a new ledger with its budget. An existing file is never touched."""
    from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
    from pacdp.validation import require_positive, require_scalar

    epsilon = require_scalar("epsilon", require_positive("epsilon", epsilon))
    budget = Guarantee(
        epsilon=epsilon, delta=delta, adjacency=Adjacency.parse(adjacency), unit=unit
    )
    _summary(SQLiteLedger.create(path, client=client, budget=budget))


@app.command()
def show(path: LedgerPath, head: Head = None, as_json: options.Json = False) -> None:
    """Whose it is, its budget, what is spent, what is left, and its head."""
    ledger = _open(path, head)
    if not as_json:
        _summary(ledger)
        return
    state = ledger.filter
    print_json(
        {
            "client": ledger.client,
            "budget": state.budget.to_dict(),
            "realised": state.realised.to_dict(),
            "charged": state.charged.to_dict(),
            "releases": state.spent.total(),
            "least_z_left": state.least_z,
            "entries": len(ledger.entries),
            "head": ledger.head,
        }
    )


@app.command()
def verify(path: LedgerPath, head: Head = None) -> None:
    """Check the file, its chain and its arithmetic; with --head also that it is not older."""
    ledger = _open(path, head)
    typer.echo(f"{path}: intact, {len(ledger.entries)} entries, head {ledger.head}")


@app.command()
def export(
    path: LedgerPath,
    form: Annotated[
        str, typer.Option("--format", metavar="json|csv", help="JSON lines, or a table.")
    ] = "json",
) -> None:
    """Print every entry, for an auditor."""
    from pacdp.validation import require_member

    require_member("--format", form, ("json", "csv"))
    entries = [entry.to_dict() for entry in _open(path).entries]
    if form == "csv":
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(entries)
    else:
        for entry in entries:
            typer.echo(json.dumps(entry, ensure_ascii=False))


@app.command("set-budget")
def set_budget(
    path: LedgerPath,
    epsilon: Annotated[float, typer.Option(help="The new ε, not below what is charged.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the entry.")] = "",
) -> None:
    """Change the budget. The change is an entry of its own."""
    ledger = _open(path)
    ledger.set_budget(epsilon, reason=reason)
    _summary(ledger)


def _open(path: Path, head: str | None = None) -> "SQLiteLedger":
    from pacdp.privacy import SQLiteLedger

    return SQLiteLedger(path, head=head)


def _summary(ledger: "SQLiteLedger") -> None:
    state = ledger.filter
    rows = {
        "client": ledger.client,
        "budget": str(state.budget),
        "realised": f"{state.realised} over {state.spent.total()} releases",
    }
    if state.frozen:
        rows["charged"] = f"{state.charged} with frozen plans as a whole"
    left = state.least_z
    rows["left"] = f"one release at z >= {left:.6g} (σ/S)" if left else "nothing"
    rows |= {"entries": str(len(ledger.entries)), "head": ledger.head}
    print_rows(rows)
