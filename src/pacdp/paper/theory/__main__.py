"""``python -m pacdp.paper.theory --out FOLDER``: every measurement, as tables and figures."""

import argparse
import sys
from pathlib import Path

from pacdp.errors import InputError
from pacdp.paper.figures.theory import (
    approximation_figure,
    guess_figure,
    rates_figure,
    rounds_figure,
)
from pacdp.paper.theory.approximation import pipelines, regression
from pacdp.paper.theory.budget import rounds_at_budget
from pacdp.paper.theory.experiments import sweeps
from pacdp.paper.theory.guess import guesses
from pacdp.paper.theory.report import approximation_table, guess_table, rounds_table, sweeps_table


def write(out: Path) -> Path:
    """Measure everything, and write ``table.md`` and each figure as PNG and SVG."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out = {out}: must be a folder that can be made ({error})") from error
    rates, at_budget = sweeps(), rounds_at_budget()
    least_squares, ways, found = regression(), pipelines(), guesses()
    table = "\n".join(
        [
            "## Theorems 2 to 4: slopes in log-log\n",
            sweeps_table(rates),
            "## The best number of rounds at one total budget\n",
            rounds_table(at_budget),
            "## Theorem 5\n",
            approximation_table(least_squares, ways),
            "## The surrogate against a grid\n",
            guess_table(found),
        ]
    )
    (out / "table.md").write_text(table)
    figures = {
        "rates": rates_figure(rates),
        "rounds": rounds_figure(at_budget),
        "approximation": approximation_figure(least_squares, ways),
        "surrogate": guess_figure(found),
    }
    for name, figure in figures.items():
        for ending in ("png", "svg"):
            figure.savefig(out / f"{name}.{ending}", dpi=110)
    return out / "table.md"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m pacdp.paper.theory", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    try:
        sys.stdout.write(f"{write(parser.parse_args().out)}\n")
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
