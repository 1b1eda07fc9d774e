"""Tables of the measurements, in Markdown."""

from collections.abc import Sequence

import numpy as np

from pacdp.paper.theory.approximation import SCORE_NOISES, Pipeline, Regression
from pacdp.paper.theory.budget import RoundsAtBudget
from pacdp.paper.theory.slopes import Slope
from pacdp.paper.theory.surrogate_check import SurrogateCheck
from pacdp.paper.theory.sweeps import Sweep
from pacdp.validation import FloatArray


def format_sweeps(sweeps: Sequence[Sweep]) -> str:
    """Format one row per statement.

    >>> from pacdp.paper.theory.sweeps import measure_sweeps
    >>> sweeps = measure_sweeps(repeats=4, rounds=32, dimension=4)
    >>> print(format_sweeps(sweeps).splitlines()[0])
    | theorem | part of the error | in | stated | derived | measured (± s.e.) | holds? |
    """
    return _format_table(
        ("theorem", "part of the error", "in", "stated", "derived", "measured (± s.e.)", "holds?"),
        [
            (
                *(sweep.theorem, sweep.part, sweep.setting, f"{sweep.stated:g}"),
                "-" if sweep.derived is None else f"{sweep.derived:g}",
                *(_format_slope(sweep.slope), sweep.verdict),
            )
            for sweep in sweeps
        ],
    )


def format_rounds(results: Sequence[RoundsAtBudget]) -> str:
    """Format one row per budget.

    >>> from pacdp.paper.theory.budget import measure_rounds_at_budget
    >>> len(format_rounds(measure_rounds_at_budget(repeats=2, most=8)).splitlines())
    8
    """
    rows = []
    for result in results:
        fixed = result.errors.mean(1)
        tuned = result.tuned.mean(1)[np.array(result.rounds) >= result.measured]
        rows.append(
            (
                *(result.theorem, f"{result.epsilon:g}"),
                *(str(result.measured), str(result.predicted), f"{result.excess:.2f}"),
                *(f"{fixed[-1] / fixed.min():.1f}", f"{tuned.max() / tuned.min():.2f}"),
            )
        )
    return _format_table(
        (
            *("theorem", "ε", "best T measured", "best T of the bound"),
            *("error there / least error", "error at the last T / least error"),
            "η tuned: largest / least error from the best T on",
        ),
        rows,
    )


def format_approximation(regression: Regression, pipelines: Sequence[Pipeline]) -> str:
    """Format the measurements of Theorem 5.

    >>> from pacdp.paper.theory.approximation import measure_pipelines, measure_regression
    >>> pipelines = measure_pipelines(repeats=1, counts=[4, 5])
    >>> print(format_approximation(measure_regression(repeats=20), pipelines).splitlines()[0])
    | statement of Theorem 5 | stated | measured |
    """
    slope = _format_slope(regression.slope)
    rows = [
        ("noise part of E(Ĉ − C*)² of least squares, slope in n", "-1", slope),
        ("the same over σ²/n", "at most 1", f"{regression.factor:.2f}"),
    ]
    for pipeline in pipelines:
        first, *_, last = pipeline.counts
        loudest = SCORE_NOISES[-1]
        by_count, by_noise = (
            _format_range(np.nanmean(errors, 1))
            for errors in (pipeline.errors, pipeline.errors_by_noise)
        )
        statements = (
            (f"E(Ĉ − C*)² from n = {first} to {last}", "falls to η²", by_count),
            (f"the same from no noise to {loudest:g} of a score", "rises from η²", by_noise),
            ("utility gap, slope in the distance Ĉ − C*", "1", f"{pipeline.gap_slope:.2f}"),
        )
        rows += [(f"{pipeline.name}: {text}", stated, value) for text, stated, value in statements]
    return _format_table(("statement of Theorem 5", "stated", "measured"), rows)


def format_surrogate(checks: Sequence[SurrogateCheck]) -> str:
    """Format one row per learning rate.

    >>> from pacdp.paper.theory.surrogate_check import check_surrogate
    >>> checks = check_surrogate(
    ...     rates=[1.0], budgets=[0.1, 10], bounds=[0.1, 1, 10], seeds=2, rounds=3
    ... )
    >>> len(format_surrogate(checks).splitlines())
    3
    """
    head = ["learning rate", "C* of the grid"]
    for kappa in checks[0].predicted:
        head += [f"κ = {kappa}", "off by a factor", "accuracy lost, mean"]
    rows = []
    for check in checks:
        row = [f"{check.learning_rate:g}", _format_range(check.selected)]
        for predicted in check.predicted.values():
            lost = 100 * check.lost_score(predicted)
            row += [_format_range(predicted), f"{check.error_factor(predicted):.1f}"]
            row.append(f"{lost:.1f} points")
        rows.append(row)
    return _format_table(head, rows)


def _format_range(values: FloatArray) -> str:
    return f"{values[0]:.2g} to {values[-1]:.2g}"


def _format_slope(slope: Slope) -> str:
    return f"{slope.value:.2f} ± {slope.error:.3f}"


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
