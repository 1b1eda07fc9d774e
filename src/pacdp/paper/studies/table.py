"""Tables for readers (Markdown) and for programs (CSV)."""

import csv
import io
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.formatting import MISSING, format_min_median_max
from pacdp.paper.studies.study import Study, label_arm
from pacdp.paper.studies.summary import ArmResult, StudyResult, compute_gains
from pacdp.reporting.comparison import collect_values, format_epsilons
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


def format_records(records: Sequence[Collection[tuple[str, str]]], *, words: int = 1) -> str:
    """Format a Markdown table of rows that consist of pairs (heading, cell).

    >>> print(format_records([{"a": "x", "b": "1"}.items()]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    headings = [heading for heading, _ in records[0]]
    rows = [[cell for _, cell in record] for record in records]
    return format_markdown(headings, rows, words=words)


def format_percent(stats: SampleStats) -> str:
    """Format mean ± standard deviation in percent; a single run has no deviation.

    >>> [format_percent(SampleStats(0.5, 0.012, count=count)) for count in (3, 1)]
    ['50.0 ± 1.2', '50.0']
    """
    mean = f"{100 * stats.mean:.1f}"
    return mean if stats.count < 2 else f"{mean} ± {100 * stats.deviation:.1f}"


def format_main_table(result: StudyResult) -> str:
    """Format every arm as published and as certified, with the paper's number."""
    records = [
        [
            ("method", label_arm(row.arm)),
            ("reading", row.reading),
            ("accuracy, %", format_percent(row.accuracy) + _format_before(row)),
            ("the paper, %", _format_paper(result.study, row)),
            ("clients, %", format_min_median_max([round(100 * a, 1) for a in row.clients])),
            ("budget ε", format_epsilons(row.runs, "epsilon_budget")),
            ("planned ε of the whole run", format_epsilons(row.runs, "epsilon_planned")),
            ("realised", format_epsilons(row.runs, "epsilon_spent")),
            *_list_rounds(result.study, row),
            *_list_targets(result.study, row),
        ]
        for row in result.rows
    ]
    return format_records(records, words=2)


def _format_before(row: ArmResult) -> str:
    return "" if row.before is None else f" (before any private data {100 * row.before:.1f})"


def _format_paper(study: Study, row: ArmResult) -> str:
    """Format the paper's number, and whether the mean reaches it."""
    reported = study.paper.final.get(row.arm)
    if reported is None:
        return MISSING
    reached = "reached" if row.accuracy.mean >= reported else "not reached"
    return f"{100 * reported:.1f}, {reached}"


def _list_rounds(study: Study, row: ArmResult) -> Iterator[tuple[str, str]]:
    """Yield the accuracy after some rounds, with the paper's number."""
    for number in study.rounds:
        reported = study.paper.rounds.get(row.arm, {}).get(number)
        beside = "" if reported is None else f" ({100 * reported:.1f})"
        after = row.after(number)
        accuracy = MISSING if after is None else f"{100 * after.mean:.1f}"
        yield f"round {number} (the paper)", accuracy + beside


def _list_targets(study: Study, row: ArmResult) -> Iterator[tuple[str, str]]:
    """Yield the rounds and the traffic until each target is reached."""
    megabytes = row.runs[0].bytes_per_round / 1e6
    for target in (study.target, *study.targets):
        if target is None:
            continue
        reached = row.rounds_to(target)
        known = [number for number in reached if number is not None]
        rounds, traffic = "not reached", MISSING
        if len(known) == len(reached):
            middle = statistics.median(known)
            rounds, traffic = f"{middle:g}", f"{middle * megabytes:.3g}"
        elif known:
            rounds = f"{len(known)} of {len(reached)} runs"
        reported = study.paper.target.get(row.arm) if target == study.target else None
        beside = f" ({reported})" if reported else ""
        yield f"rounds to {target:.0%} (the paper)", rounds + beside
        yield "MB until then", traffic


def format_gains_table(result: StudyResult) -> str:
    """Format PAC-DP compared with each certified baseline, paired by seed."""
    rows = [[label_arm(gain.other), str(gain), gain.verdict] for gain in compute_gains(result)]
    return format_markdown(["PAC-DP compared with", "points ± standard error", "PAC-DP"], rows)


def format_sweep_table(result: StudyResult) -> str:
    """Format the certified accuracy by budget."""
    records: dict[str, dict[str, str]] = {}
    for row in result.sweep:
        record = records.setdefault(row.arm, {"method": label_arm(row.arm)})
        record[f"ε = {row.epsilon:g}"] = format_percent(row.accuracy)
    return format_records([record.items() for record in records.values()])


def format_budget_table(result: StudyResult) -> str | None:
    """Format the certified accuracy of the clients that hold each budget, if there are several."""
    by_arm = {
        arm: collect_values(pair for run in runs for pair in run.accuracy_by_budget.items())
        for arm, runs in result.arms("certified").items()
    }
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
                    **epsilon_range(run, "epsilon_budget", name="epsilon_budget"),
                    **epsilon_range(run, "epsilon_spent", name="epsilon_certified"),
                    "delta": run.plan.privacy.delta,
                    "adjacency": run.plan.privacy.adjacency,
                    "rounds": run.rounds,
                    "bytes_per_round": run.bytes_per_round,
                    "seconds": round(run.seconds, 3),
                }
            )
    return format_csv(lines)


def epsilon_range(run: RunResult, field: str, *, name: str) -> dict[str, float | None]:
    """Return the CSV columns for the smallest and the largest of one kind of ε in a run."""
    values = collect_epsilons([run], field)
    return {f"{name}_min": min(values, default=None), f"{name}_max": max(values, default=None)}


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
