"""``python -m pacdp.paper.theory --out FOLDER``: all measurements as tables and figures."""

import argparse
import sys
from pathlib import Path

from pacdp.errors import InputError
from pacdp.paper.figures import theory as figures
from pacdp.paper.theory import approximation, budget, report, surrogate_check, sweeps


def write_report(folder: Path) -> Path:
    """Measure everything, and write ``table.md`` and each figure as PNG and SVG."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out = {folder}: must be a folder that can be made ({error})") from error
    rates, rounds = sweeps.measure_sweeps(), budget.measure_rounds_at_budget()
    theorem_5 = approximation.measure_regression(), approximation.measure_pipelines()
    checks = surrogate_check.check_surrogate()
    tables = {
        "Theorems 2 to 4: slopes in log-log": report.format_sweeps(rates),
        "The best number of rounds at one total budget": report.format_rounds(rounds),
        "Theorem 5": report.format_approximation(*theorem_5),
        "The surrogate against a grid": report.format_surrogate(checks),
    }
    path = folder / "table.md"
    path.write_text("\n".join(f"## {title}\n\n{table}" for title, table in tables.items()))
    drawn = {
        "rates": figures.draw_sweeps(rates),
        "rounds": figures.draw_rounds(rounds),
        "approximation": figures.draw_approximation(*theorem_5),
        "surrogate": figures.draw_surrogate(checks),
    }
    for name, figure in drawn.items():
        for suffix in ("png", "svg"):
            figure.savefig(folder / f"{name}.{suffix}", dpi=110)
    return path


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m pacdp.paper.theory", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    try:
        sys.stdout.write(f"{write_report(parser.parse_args().out)}\n")
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
