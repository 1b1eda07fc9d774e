"""PAC-DP with a budget for every record against other ways to respect such budgets.

Each method is tuned on public data with the same search (seeds and sweeps), then frozen and run
with the same fresh seeds, so that differences to PAC-DP are paired: partition, budgets and initial
model of a seed are the same for all methods.

    python -m benchmarks.record_budgets heart-records --seeds 40 --out heart.csv
"""

import argparse
import csv
import statistics
import time
from pathlib import Path
from typing import Any

import pacdp
from pacdp.experiments import RunResult

METHODS = (
    "pac-dp",
    "rpdp-fl",
    "rpdp-fl-original",
    "smallest-budget",
    "drop-small-budgets",
    "fedavg",
)
# Far from the seeds of the search.
FIRST_SEED = 100


def main() -> None:
    """Tune, run and compare all methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", help="heart-records, mnist-records, or an experiment file")
    parser.add_argument("--profile", help="profile of the experiment")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each method")
    parser.add_argument("--search", type=int, default=5, help="seeds of the search")
    parser.add_argument("--sweeps", type=int, default=2, help="sweeps of the search")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--out", type=Path, help="CSV file with every run")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for method in given.methods:
        began = time.perf_counter()
        tuned = pacdp.tune(
            given.experiment,
            method=method,
            seeds=given.search if method != "fedavg" else 1,
            sweeps=given.sweeps,
            profile=given.profile,
        )
        searched = time.perf_counter() - began
        print(f"{method}: {tuned.trainings} trainings in {searched:.0f} s, {tuned.chosen}")
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            result = pacdp.run(
                given.experiment,
                method=method,
                configuration=tuned,
                profile=given.profile,
                seed=seed,
            )
            rows.append({"method": method, "seed": seed} | describe(result))
        print_comparison([row for row in rows if row["method"] in (method, rows[0]["method"])])
    if given.out is not None:
        with given.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def describe(result: RunResult) -> dict[str, Any]:
    """Return the accuracy of a run, and the smallest, median and largest ε spent of a record."""
    spent = sorted(e for client in result.clients for e in client.spent_by_unit())
    excess = [
        level.epsilon_spent / level.epsilon_budget
        for client in result.clients
        for level in client.levels
    ]
    return {
        "accuracy": result.accuracy,
        "epsilon_min": spent[0] if spent else "",
        "epsilon_median": statistics.median(spent) if spent else "",
        "epsilon_max": spent[-1] if spent else "",
        "most_of_budget": max(excess) if excess else "",
    }


def print_comparison(rows: list[dict[str, Any]]) -> None:
    """Print the last method's accuracy, and its paired difference to the first method."""
    first, last = rows[0]["method"], rows[-1]["method"]
    by_seed = {row["seed"]: row["accuracy"] for row in rows if row["method"] == first}
    own = [row for row in rows if row["method"] == last]
    accuracies = [row["accuracy"] for row in own]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    line = f"{last:20} {100 * statistics.fmean(accuracies):.2f} ± {100 * spread:.2f} %"
    if last != first:
        gaps = [by_seed[row["seed"]] - row["accuracy"] for row in own]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        line += (
            f"; {first} is {100 * statistics.fmean(gaps):+.2f} ± {100 * error:.2f} points better"
        )
    epsilons = [own[0][f"epsilon_{name}"] for name in ("min", "median", "max")]
    print(f"{line}; ε of records {epsilons}, at most {own[0]['most_of_budget']} of the budget")


if __name__ == "__main__":
    main()
