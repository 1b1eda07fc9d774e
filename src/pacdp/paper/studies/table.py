"""Tables for readers (Markdown) and for programs (CSV)."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pacdp.experiments.results import collect_epsilons
from pacdp.formatting import MISSING, format_min_median_max
from pacdp.paper.studies.study import Study, label_arm
from pacdp.paper.studies.summary import ArmResult, StudyResult, compute_gains
from pacdp.stats import SampleStats


def format_markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1
) -> str:
    """Format a Markdown table; the first ``words`` columns are left-aligned, the others right.

    >>> print(format_markdown(["a", "b"], [["x", "1"]]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    aligned = ["---"] * words + ["--:"] * (len(headings) - words)
    lines = [headings, aligned, *rows]
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    shown[1] = shown[1].replace(" ", "")
    return "\n".join(shown)


def format_percent(stats: SampleStats) -> str:
    """Format mean ± standard deviation in percent; a single run has no deviation.

    >>> [format_percent(SampleStats(0.5, 0.012, count=count)) for count in (3, 1)]
    ['50.0 ± 1.2', '50.0']
    """
    mean = f"{100 * stats.mean:.1f}"
    return mean if stats.count < 2 else f"{mean} ± {100 * stats.deviation:.1f}"


def format_main_table(result: StudyResult) -> str:
    """Format every arm as published and as certified, with the paper's number."""
    study = result.study
    headings = ["method", "reading", "accuracy, %", "the paper, %", "clients, %", "budget ε"]
    headings += ["planned ε of the whole run", "realised", *_extra_headings(study)]
    rows = [
        [
            label_arm(row.arm),
            row.reading,
            format_percent(row.accuracy) + _before(row),
            _paper(study, row),
            format_min_median_max([round(100 * value, 1) for value in row.clients]),
            format_min_median_max(row.epsilons("epsilon_budget")),
            format_min_median_max(row.epsilons("epsilon_planned")),
            format_min_median_max(row.epsilons("epsilon_spent")),
            *_extra(study, row),
        ]
        for row in result.rows
    ]
    return format_markdown(headings, rows, words=2)


def _before(row: ArmResult) -> str:
    return "" if row.before is None else f" (before any private data {100 * row.before:.1f})"


def _paper(study: Study, row: ArmResult) -> str:
    """Format the paper's number, and whether the mean reaches it."""
    reported = study.paper.final.get(row.arm)
    if reported is None:
        return MISSING
    reached = "reached" if row.accuracy.mean >= reported else "not reached"
    return f"{100 * reported:.1f}, {reached}"


def _targets(study: Study) -> list[float]:
    return [*([] if study.target is None else [study.target]), *study.targets]


def _extra_headings(study: Study) -> list[str]:
    headings = [f"round {number} (the paper)" for number in study.rounds]
    for target in _targets(study):
        headings += [f"rounds to {target:.0%} (the paper)", "MB until then"]
    return headings


def _extra(study: Study, row: ArmResult) -> list[str]:
    cells = []
    for number in study.rounds:
        reported = study.paper.rounds.get(row.arm, {}).get(number)
        beside = "" if reported is None else f" ({100 * reported:.1f})"
        after = row.after(number)
        cells.append((MISSING if after is None else f"{100 * after.mean:.1f}") + beside)
    each = row.runs[0].bytes_per_round / 1e6
    for target in _targets(study):
        reached = row.rounds_to(target)
        known = [number for number in reached if number is not None]
        middle = statistics.median(known) if len(known) == len(reached) else None
        said = f"{len(known)} of {len(reached)} runs" if middle is None else f"{middle:g}"
        theirs = study.paper.target.get(row.arm) if target == study.target else None
        cells.append((said if known else "not reached") + (f" ({theirs})" if theirs else ""))
        cells.append(MISSING if middle is None else f"{middle * each:.3g}")
    return cells


def format_gains_table(result: StudyResult) -> str:
    """Format PAC-DP compared with each certified baseline, paired by seed."""
    rows = [[label_arm(gain.other), str(gain), gain.verdict] for gain in compute_gains(result)]
    return format_markdown(["PAC-DP compared with", "points ± standard error", "PAC-DP"], rows)


def format_sweep_table(result: StudyResult) -> str:
    """Format the certified accuracy by budget."""
    budgets = result.study.epsilons
    rows = []
    for arm in dict.fromkeys(row.arm for row in result.sweep):
        mine = {row.epsilon: row for row in result.sweep if row.arm == arm}
        cells = [format_percent(mine[e].accuracy) for e in budgets]
        rows.append([label_arm(arm), *cells])
    return format_markdown(["method", *(f"ε = {epsilon:g}" for epsilon in budgets)], rows)


def format_budget_table(result: StudyResult) -> str | None:
    """Format the certified accuracy of the clients that hold each budget, if there are several."""
    by_arm: dict[str, dict[float, list[float]]] = {}
    for row in result.rows:
        if row.reading == "certified":
            for run in row.runs:
                for level, value in run.accuracy_by_budget.items():
                    by_arm.setdefault(row.arm, {}).setdefault(level, []).append(value)
    levels = sorted({level for by in by_arm.values() for level in by})
    if len(levels) < 2:
        return None
    rows = [
        [label_arm(arm), *(format_percent(SampleStats.of(by[level])) for level in levels)]
        for arm, by in by_arm.items()
        if set(by) == set(levels)
    ]
    return format_markdown(
        ["accuracy, %, of clients with", *(f"ε = {level:g}" for level in levels)], rows
    )


def format_runs_csv(result: StudyResult) -> str:
    """Format one CSV row per run, with all digits."""
    lines: list[dict[str, Any]] = []
    paper = result.study.paper.final
    for row in [*result.rows, *result.sweep]:
        for run in row.runs:
            asked, spent = (
                collect_epsilons([run], field) for field in ("epsilon_budget", "epsilon_spent")
            )
            lines.append(
                {
                    "study": result.study.name,
                    "profile": result.profile,
                    "data": result.data,
                    "method": label_arm(row.arm),
                    "reading": row.reading,
                    "sweep_epsilon": row.epsilon,
                    "seed": run.seed,
                    "accuracy": run.accuracy,
                    "chance": run.chance,
                    # The paper's budget is that of the rows, not of a sweep.
                    "paper_accuracy": None if row.epsilon else paper.get(row.arm),
                    "epsilon_budget_min": min(asked, default=None),
                    "epsilon_budget_max": max(asked, default=None),
                    "epsilon_certified_min": min(spent, default=None),
                    "epsilon_certified_max": max(spent, default=None),
                    "delta": run.plan.privacy.delta,
                    "adjacency": run.plan.privacy.adjacency,
                    "rounds": run.rounds,
                    "bytes_per_round": run.bytes_per_round,
                    "seconds": round(run.seconds, 3),
                }
            )
    return format_csv(lines)


def format_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with the same keys as CSV.

    >>> format_csv([{"a": 1, "b": "x"}])
    'a,b\\n1,x\\n'
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
