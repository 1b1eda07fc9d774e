"""``python -m benchmarks``: measure, print and write build/bench.json. Always exits with 0."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import accounting, clipping, federation, offline, release
from benchmarks.harness import Row, write

OUT = Path("build/bench.json")
SUITES = (accounting, clipping, release, offline, federation)


def main() -> None:
    """Run every suite, writing each row as it finishes."""
    console = Console()
    rows: list[Row] = []
    for suite in SUITES:
        for row in suite.rows():
            rows.append(row)
            write(rows, OUT)
            console.print(
                f"{row.row}  {row.work}: {row.ratio:,.3g}x against {row.against}", highlight=False
            )
    table = Table(title="Ratios measured in this run")
    for heading in ("row", "work", "against", "ratio", "goal", "holds"):
        table.add_column(heading)
    for row in rows:
        holds = "yes" if row.holds else "NO"
        table.add_row(str(row.row), row.work, row.against, f"{row.ratio:,.3g}x", row.goal, holds)
    console.print(table)
    console.print(f"Written to {OUT}", highlight=False)


if __name__ == "__main__":
    main()
