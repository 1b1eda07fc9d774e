"""``pacdp demo``: train one model over four hospitals with different budgets."""

import tempfile
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from pacdp import formatting
from pacdp.cli.progress import show_progress
from pacdp.errors import InputError


def demo_command(
    out: Annotated[Path, Option(help="Folder for the ledgers and the report.")] = Path(
        "pacdp-demo"
    ),
) -> None:
    """Run a demonstration: train one model over four hospitals with different budgets."""
    # Only the demo trains and draws, so only the demo waits for torch and matplotlib.
    from pacdp.experiments import RunResult
    from pacdp.experiments.execute import simulate_run
    from pacdp.experiments.results import collect_epsilons
    from pacdp.federation import Result
    from pacdp.paper.studies import demo
    from pacdp.reporting.comparison import Comparison, format_stats

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file, must be a folder")
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ledgers-", dir=out))
    runs = [(method, seed) for method in demo.METHODS for seed in range(demo.SEEDS)]
    groups: dict[str, list[RunResult]] = {method: [] for method in demo.METHODS}
    first: Result | None = None
    experiment = demo.load_demo_experiment()
    with show_progress() as progress:
        curve = demo.fit_demo_curve(experiment, progress)
        ready = demo.prepare_method(experiment, curve, "pac-dp", 0)
        ledgers = demo.open_ledgers(folder, ready.plan)
        for number, (method, seed) in enumerate(runs):
            progress("training", number, len(runs), f"{method}, seed {seed}")
            prepared = demo.prepare_method(experiment, curve, method, seed)
            # One run uses ledgers in files; the others keep theirs in memory.
            result = simulate_run(prepared, ledgers=ledgers if first is None else None)
            first = first or result
            groups[method].append(RunResult.of(prepared, result))
    assert first is not None
    plan, comparison = ready.plan, Comparison(groups)
    terms = f"ε at {comparison.terms}"
    low, high = curve.domain
    console.print(
        f"F(ε) was fitted on public data for ε from {low:g} to {high:g}: "
        + ", ".join(f"F({epsilon:g}) = {curve(epsilon):.2f}" for epsilon in (0.01, 0.05, 0.5)),
        highlight=False,
    )
    table = Table(title=f"{plan.rounds} rounds, {demo.SEEDS} seeds; {terms}")
    table.add_column("method", no_wrap=True)
    table.add_column("what it is")
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("spent ε", justify="right", no_wrap=True)
    for method, results in groups.items():
        spent = collect_epsilons(results, "epsilon_spent")
        table.add_row(
            method,
            demo.METHODS[method],
            format_stats(comparison.final_stats(method), "accuracy"),
            formatting.format_min_median_max(spent) if spent else "none",
        )
    table.caption = (
        "The largest hospital has the largest budget here, and all methods weight clients by "
        f"{plan.server.weights}; both affect the result strongly. pacdp compare heart-personalised "
        "varies who has which budget; --set server.weights=size weights by size."
    )
    table.add_row(
        "chance",
        "always the most frequent diagnosis",
        formatting.format_score(comparison.baseline, "accuracy"),
    )
    console.print(table)

    table = Table(title=f"PAC-DP, from the hospitals' own ledgers; {terms}")
    table.add_column("hospital", no_wrap=True)
    for heading in ("records", "budget ε", "spent ε", "releases", "noise σ/C", "C, first round"):
        table.add_column(heading, justify="right")
    for client, ledger in zip(plan.clients, ledgers, strict=True):
        state = ledger.filter
        table.add_row(
            *(client.name, str(client.records), f"{client.epsilon:g}"),
            *(f"{state.realised.epsilon:.6g}", str(state.spent.total())),
            f"{client.noise_multiplier:.2f}",
            f"{plan.algorithm.bound(client.epsilon, round=0, rounds=plan.rounds):.3f}",
        )
    console.print(table)
    console.print("Another round is refused by the client itself:", style="bold")
    console.print(demo.request_extra_round(ready, first, ledgers), highlight=False)
    picture, report = out / "demo.png", out / "report.html"
    demo.draw_figure(comparison).savefig(picture, dpi=150)
    demo.write_demo_report(report, comparison, curve, experiment.description)
    console.print(
        f"\nLedgers: {folder}\nPicture: {picture}\nReport:  {report}",
        highlight=False,
        soft_wrap=True,
    )
