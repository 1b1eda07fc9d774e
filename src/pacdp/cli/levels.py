"""Tables of budget levels, where single records (or units) have budgets of their own."""

from typing import TYPE_CHECKING

from rich.table import Table

from pacdp.cli.rendering import empty_table
from pacdp.formatting import format_min_median_max

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pacdp.experiments.levels import LevelSummary
    from pacdp.federation import Plan


def cost_table(plan: "Plan", levels: "Sequence[LevelSummary]", cost: str) -> Table:
    """Return a row for each level; ``cost`` says which ε the levels hold: planned or spent."""
    sampled = any(rate < 1 for level in levels for rate in level.sampling_rates)
    caption = (
        f"level: the declared ε of a {plan.unit}; budget: the same, capped by the client's; "
        "C_j/C: clipping bound over the largest"
    )
    if not plan.algorithm.supports_record_budgets:
        caption += (
            f"; {plan.method} does not support levels and gives every {plan.unit} the smallest"
        )
    table = empty_table(
        plan,
        "level",
        (
            *(f"{plan.unit}s", "budget ε", f"{cost} ε", "bound C_j/C"),
            *(["sampling rate"] if sampled else []),
        ),
        caption=caption,
    )
    for level in levels:
        table.add_row(
            f"{level.epsilon:g}",
            str(level.units),
            *(format_min_median_max(v) for v in (level.budgets, level.costs, level.ratios)),
            *([format_min_median_max(level.sampling_rates)] if sampled else []),
        )
    return table


def count_table(plan: "Plan", shown: int) -> Table:
    """Return how many units of the first clients have each level."""
    table = empty_table(
        plan,
        "client",
        [f"level {level.epsilon:g}" for level in plan.clients[0].levels],
        caption=f"{plan.unit}s of each client at each level; which ones, only the client knows",
    )
    for client in plan.clients[:shown]:
        table.add_row(client.name, *(str(level.units) for level in client.levels))
    if shown < len(plan.clients):
        table.add_row(f"... {len(plan.clients) - shown} more")
    return table
