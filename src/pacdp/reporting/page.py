"""A report as one HTML page that loads nothing from elsewhere."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pacdp import __version__
from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.experiments.run_folder import describe_environment
from pacdp.reporting import summary
from pacdp.reporting.comparison import Comparison
from pacdp.reporting.figures import clients
from pacdp.reporting.figures.base import Chart
from pacdp.reporting.figures.comparison import (
    plot_accuracy_by_budget,
    plot_final_metrics,
    plot_metric_by_round,
)
from pacdp.reporting.figures.mechanism import find_curve, plot_clipping_and_noise, plot_curve
from pacdp.reporting.tables import tabulate_clients, tabulate_levels, tabulate_methods
from pacdp.reporting.templates import load_script, load_style, load_template


def render_page(
    title: str,
    results: Comparison | Mapping[str, Sequence[RunResult]],
    *,
    description: str = "",
    curve: Curve | None = None,
    commands: Sequence[str] = (),
    notes: Sequence[str] = (),
    extra_charts: Sequence[Chart] = (),
    versions: Mapping[str, str] | None = None,
) -> str:
    """Render results, by method and one for each seed, as a complete HTML document.

    ``curve`` is by default the one that a method was run with. ``extra_charts`` follow the
    comparison. ``versions`` are by default those installed; the time is left out, so that the
    same results give the same page.

    >>> from pacdp.experiments import RunResult, prepare_run, read_experiment
    >>> from pacdp.experiments.execute import simulate_run
    >>> prepared = prepare_run(read_experiment("heart", profile="smoke"))
    >>> html = render_page("Heart", {"pac-dp": [RunResult.of(prepared, simulate_run(prepared))]})
    >>> html.splitlines()[0], "://" in html
    ('<!doctype html>', False)
    """
    comparison = results if isinstance(results, Comparison) else Comparison(results)
    curve = curve or find_curve(comparison)
    versions = describe_environment() if versions is None else versions
    panels = [
        _make_panel(number, label, comparison) for number, label in enumerate(comparison.groups)
    ]
    return load_template("page.html").render(
        title=title,
        description=description,
        unit=comparison.plan.unit,
        lead=summary.describe_comparison(comparison),
        facts=summary.list_facts(comparison),
        sentences=summary.explain_results(comparison),
        warnings=[warning for panel in panels for warning in panel["warnings"]],
        notes=notes,
        by_round=plot_metric_by_round(comparison),
        by_method=plot_final_metrics(comparison),
        methods=tabulate_methods(comparison),
        by_budget=plot_accuracy_by_budget(comparison),
        extra_charts=extra_charts,
        curve=None if curve is None else plot_curve(curve, terms=comparison.terms),
        signal=clients.plot_signal_to_noise(comparison),
        panels=panels,
        commands=commands,
        versions={name: value for name, value in versions.items() if name != "time"},
        pacdp_version=__version__,
        style=load_style(),
        **load_script(),
    )


def _make_panel(number: int, label: str, comparison: Comparison) -> dict[str, Any]:
    """Collect what is shown for one method alone; of its runs, that of the first seed."""
    result = comparison.groups[label][0]
    charts = {
        "thresholds": plot_clipping_and_noise(comparison, label),
        "epsilon": clients.plot_client_epsilon(result),
        "accuracy": clients.plot_client_accuracy(result),
    }
    return {
        "key": f"arm-{number}",
        "label": label,
        "seed": result.seed,
        "warnings": summary.list_warnings(comparison, label),
        "charts": {key: chart for key, chart in charts.items() if chart is not None},
        "levels": tabulate_levels(result),
        "clients": tabulate_clients(result),
        "plan": json.dumps(result.plan.model_dump(mode="json"), indent=2, ensure_ascii=False),
    }
