"""Tables of what was measured, in Markdown."""

from collections.abc import Sequence

import numpy as np

from pacdp.paper.theory.approximation import Pipeline, Regression
from pacdp.paper.theory.budget import RoundsAtBudget
from pacdp.paper.theory.experiments import Sweep
from pacdp.paper.theory.guess import Guess
from pacdp.paper.theory.slopes import Slope
from pacdp.validation import FloatArray


def sweeps_table(sweeps: Sequence[Sweep]) -> str:
    """A row for each statement.

    >>> from pacdp.paper.theory.experiments import sweeps
    >>> print(sweeps_table(sweeps(repeats=4, rounds=32, dimension=4)).splitlines()[0])
    | theorem | part of the error | in | stated | derived | measured (± s.e.) | holds? |
    """
    return _table(
        ("theorem", "part of the error", "in", "stated", "derived", "measured (± s.e.)", "holds?"),
        [
            (
                *(one.theorem, one.part, one.setting, _slope(one.stated)),
                "-" if one.derived is None else _slope(one.derived),
                _with_error(one.slope),
                one.holds,
            )
            for one in sweeps
        ],
    )


def rounds_table(found: Sequence[RoundsAtBudget]) -> str:
    """A row for each budget.

    >>> from pacdp.paper.theory.budget import rounds_at_budget
    >>> len(rounds_table(rounds_at_budget(repeats=2, most=8)).splitlines())
    8
    """
    rows = []
    for one in found:
        tuned = one.tuned.mean(1)
        late = tuned[np.array(one.rounds) >= one.measured]
        rows.append(
            (
                *(one.theorem, f"{one.epsilon:g}", str(one.measured), str(one.predicted)),
                *(f"{one.lost:.2f}", f"{one.errors.mean(1)[-1] / one.errors.mean(1).min():.1f}"),
                f"{late.max() / late.min():.2f}",
            )
        )
    return _table(
        (
            *("theorem", "ε", "best T measured", "best T of the bound"),
            *("error there / least error", "error at the last T / least error"),
            "η tuned: largest / least error from the best T on",
        ),
        rows,
    )


def approximation_table(regression: Regression, pipelines: Sequence[Pipeline]) -> str:
    """Theorem 5 in a few numbers.

    >>> from pacdp.paper.theory.approximation import pipelines, regression
    >>> few = pipelines(repeats=1, counts=[4, 5])
    >>> print(approximation_table(regression(repeats=20), few).splitlines()[0])
    | statement of Theorem 5 | stated | measured |
    """
    slope = regression.slope
    rows = [
        ("noise part of E(Ĉ − C*)² of least squares, slope in n", "-1", _with_error(slope)),
        ("the same over σ²/n", "at most 1", f"{regression.factor:.2f}"),
    ]
    for way in pipelines:
        first, last = np.nanmean(way.errors, 1)[[0, -1]]
        rows.append(
            (
                f"{way.name}: E(Ĉ − C*)² from n = {way.counts[0]} to {way.counts[-1]}",
                "falls to η²",
                f"{first:.2g} to {last:.2g}",
            )
        )
        quiet, loud = np.nanmean(way.by_noise, 1)[[0, -1]]
        rows.append(
            (
                f"{way.name}: the same from no noise to {way.noises[-1]:g} of a score",
                "rises from η²",
                f"{quiet:.2g} to {loud:.2g}",
            )
        )
        rows.append(
            (f"{way.name}: utility gap, slope in the distance Ĉ − C*", "1", f"{way.gap_slope:.2f}")
        )
    return _table(("statement of Theorem 5", "stated", "measured"), rows)


def guess_table(found: Sequence[Guess]) -> str:
    """A row for each learning rate.

    >>> from pacdp.paper.theory.guess import guesses
    >>> few = guesses(rates=[1.0], budgets=[0.1, 10], bounds=[0.1, 1, 10], seeds=2, rounds=3)
    >>> len(guess_table(few).splitlines())
    3
    """
    return _table(
        (
            *("learning rate", "C* of the grid", "κ = 1/K", "off by a factor"),
            *("accuracy lost, mean", "κ = 1", "off by a factor", "accuracy lost, mean"),
        ),
        [
            (
                *(f"{one.learning_rate:g}", _range(one.found)),
                *(
                    cell
                    for guess in (one.guessed, one.paper)
                    for cell in (
                        _range(guess),
                        f"{np.exp(one.off(guess)):.1f}",
                        f"{100 * one.lost(guess).mean():.1f} points",
                    )
                ),
            )
            for one in found
        ],
    )


def _range(bounds: FloatArray) -> str:
    return f"{bounds[0]:.2g} to {bounds[-1]:.2g}"


def _slope(value: float) -> str:
    return f"{value:g}"


def _with_error(slope: Slope) -> str:
    return f"{slope.value:.2f} ± {slope.error:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
