"""``pacdp ledger``: create, inspect, verify and change a client's privacy ledger."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows
from pacdp.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pacdp.privacy import Filter, SQLiteLedger

app = typer.Typer(
    no_args_is_help=True,
    help="Create, inspect, verify and change a client's privacy ledger (its record of spent "
    "budget).",
)

LedgerPath = Annotated[Path, Argument(metavar="PATH", help="The ledger file.")]
Head = Annotated[
    str | None,
    Option(help="Head (hash of the last entry) noted earlier; a ledger without it is rejected."),
]
# Columns of the CSV export; an entry fills those its kind has.
COLUMNS = (
    *("sequence", "kind", "time", "client", "run", "label", "epsilon", "delta", "adjacency"),
    *("noise_multiplier", "sensitivity", "count", "sampling_rate", "unit", "reason", "hash"),
    *("levels", "level", "round", "broadcast", "reply"),
)


@app.command()
def create(
    path: LedgerPath,
    client: Annotated[str, Option(help="Name of the client that owns the ledger.")],
    epsilon: Annotated[float, Option(help="Budget ε for all runs together, > 0.")],
    delta: options.Delta = options.DEFAULT_DELTA,
    adjacency: options.AdjacencyName = options.DEFAULT_ADJACENCY,
    unit: Annotated[
        str, Option(help="What ε protects: a record, or e.g. a patient with all of their records.")
    ] = "record",
    levels: Annotated[
        list[float] | None,
        Option(
            "--level",
            help="ε of a budget level, where records have budgets of their own; --epsilon is then "
            "a cap. Repeatable, in ascending order as in the plan.",
        ),
    ] = None,
) -> None:
    """Create a ledger with a budget. An existing file is never overwritten."""
    from pacdp.privacy import Adjacency, Guarantee, SQLiteLedger
    from pacdp.validation import require_positive_number

    require_positive_number("epsilon", epsilon)
    budget = Guarantee(
        epsilon=epsilon, delta=delta, adjacency=Adjacency.parse(adjacency), unit=unit
    )
    _summary(SQLiteLedger.create(path, client=client, budget=budget, levels=levels or ()))


@app.command()
def show(path: LedgerPath, head: Head = None, as_json: options.Json = False) -> None:
    """Show the client, the budget, what is spent and left, and the head."""
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
        | _levels_to_json(state)
    )


@app.command()
def verify(path: LedgerPath, head: Head = None) -> None:
    """Verify the hash chain and the spent budget; with --head, also that no entry is missing."""
    ledger = _open(path, head)
    typer.echo(f"{path}: intact, {len(ledger.entries)} entries, head {ledger.head}")


@app.command()
def export(
    path: LedgerPath,
    form: Annotated[
        str, Option("--format", metavar="json|csv", help="JSON lines or CSV.")
    ] = "json",
) -> None:
    """Print every entry, e.g. for an auditor."""
    from pacdp.validation import require_member

    require_member("--format", form, ("json", "csv"))
    entries = [entry.to_dict() for entry in _open(path).entries]
    if form == "csv":
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {**entry, "levels": json.dumps(entry["levels"])} if "levels" in entry else entry
            for entry in entries
        )
    else:
        for entry in entries:
            typer.echo(json.dumps(entry, ensure_ascii=False))


@app.command("set-budget")
def set_budget(
    path: LedgerPath,
    epsilon: Annotated[
        float, Option(help="New budget ε; cannot be below what is already charged.")
    ],
    reason: Annotated[str, Option(help="Reason to record with the change.")] = "",
    level: Annotated[
        float | None,
        Option(help="Change a budget level instead, named by its declared ε, as shown by show."),
    ] = None,
) -> None:
    """Change the budget, or that of a level. The change and its reason are recorded in the ledger.

    Without --level, the budget is the cap on all levels.
    """
    ledger = _open(path)
    number = None if level is None else _find_level(ledger.filter.levels, level)
    ledger.set_budget(epsilon, reason=reason, level=number)
    _summary(ledger)


def _find_level(levels: "Sequence[float]", epsilon: float) -> int:
    """Return the number of the level that has this ε."""
    if epsilon not in levels:
        known = ", ".join(f"{level:g}" for level in levels) or "none"
        raise InputError(f"--level {epsilon:g}: is no level of this ledger, which has {known}")
    return levels.index(epsilon)


def _open(path: Path, head: str | None = None) -> "SQLiteLedger":
    from pacdp.privacy import SQLiteLedger

    return SQLiteLedger(path, head=head)


def _summary(ledger: "SQLiteLedger") -> None:
    state = ledger.filter
    rows = {
        "client": ledger.client,
        "budget": str(state.budget),
        "spent": f"{state.realised} over {state.spent.total()} releases",
    }
    if state.levels and state.spent:
        rows["spent"] += ", at the level that spent most"
    if state.frozen:
        rows["charged"] = f"{state.charged}, counting plans with sampled records in full"
    rows["left"] = _left(state)
    for number, epsilon in enumerate(state.levels):
        level = state.by_level[number]
        capped = ", capped" if level.budget.epsilon < state.level_budgets[number] else ""
        rows[f"level {epsilon:g}"] = (
            f"spent {level.realised} of a budget of {level.budget.epsilon:g}{capped}; "
            f"left: {_left(level)}"
        )
    rows |= {"entries": str(len(ledger.entries)), "head": ledger.head}
    print_rows(rows)


def _left(state: "Filter") -> str:
    least = state.least_z
    return f"one release with noise z >= {least:.6g} (σ/S)" if least else "nothing"


def _levels_to_json(state: "Filter") -> dict[str, Any]:
    if not state.levels:
        return {}
    levels = [
        {
            "epsilon": epsilon,
            "budget": level.budget.to_dict(),
            "realised": level.realised.to_dict(),
            "charged": level.charged.to_dict(),
            "least_z_left": level.least_z,
        }
        for epsilon, level in zip(state.levels, state.by_level, strict=True)
    ]
    return {"levels": levels}
