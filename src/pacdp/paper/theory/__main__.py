"""``python -m pacdp.paper.theory --out FOLDER``: all measurements as tables and figures."""

import argparse
import sys
from pathlib import Path

from pacdp.errors import InputError
from pacdp.paper.figures.theory import (
    draw_approximation,
    draw_rounds,
    draw_surrogate,
    draw_sweeps,
)
from pacdp.paper.theory.approximation import measure_pipelines, measure_regression
from pacdp.paper.theory.budget import measure_rounds_at_budget
from pacdp.paper.theory.report import (
    format_approximation,
    format_rounds,
    format_surrogate,
    format_sweeps,
)
from pacdp.paper.theory.surrogate_check import check_surrogate
from pacdp.paper.theory.sweeps import measure_sweeps


def write_report(folder: Path) -> Path:
    """Measure everything, and write ``table.md`` and each figure as PNG and SVG."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out = {folder}: must be a folder that can be made ({error})") from error
    sweeps, rounds = measure_sweeps(), measure_rounds_at_budget()
    regression, pipelines, checks = measure_regression(), measure_pipelines(), check_surrogate()
    tables = {
        "Theorems 2 to 4: slopes in log-log": format_sweeps(sweeps),
        "The best number of rounds at one total budget": format_rounds(rounds),
        "Theorem 5": format_approximation(regression, pipelines),
        "The surrogate against a grid": format_surrogate(checks),
    }
    path = folder / "table.md"
    path.write_text("\n".join(f"## {title}\n\n{table}" for title, table in tables.items()))
    figures = {
        "rates": draw_sweeps(sweeps),
        "rounds": draw_rounds(rounds),
        "approximation": draw_approximation(regression, pipelines),
        "surrogate": draw_surrogate(checks),
    }
    for name, figure in figures.items():
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
