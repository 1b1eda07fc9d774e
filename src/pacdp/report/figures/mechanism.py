"""How privacy is made: the curve F, and thresholds and noise over the rounds."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from pacdp.curve import Curve
from pacdp.experiments import RunResult
from pacdp.federation import Plan
from pacdp.formatting import counted, number, score
from pacdp.report.comparison import terms_of
from pacdp.report.figures.base import Picture, Sketch, Table, Tip, thinned
from pacdp.report.figures.curve import draw_curve
from pacdp.report.figures.palette import look

# More levels than these cannot be told apart.
MOST_LEVELS = 6


def thresholds(outcomes: Sequence[RunResult]) -> Picture | None:
    """C and σ of each budget level over the rounds; None where a method bounds nothing."""
    plan = outcomes[0].plan
    levels = _levels(plan)
    if not plan.algorithm.private or not levels:
        return None
    followed = _followed(outcomes)
    bounds = {level: followed or _planned(plan, level) for level in levels}
    said, sketch = terms_of(plan), Sketch(columns=2, height=3.4)
    left, right = sketch.axes
    rows, entries = [], {}
    for place, level in enumerate(levels):
        multipliers = [c.noise_multiplier or 0.0 for c in plan.clients if c.epsilon == level]
        multiplier, chosen = statistics.median(multipliers), look(place)
        rounds, bound = list(bounds[level]), list(bounds[level].values())
        noise = [multiplier * one for one in bound]
        name = f"ε = {level:g} ({counted(len(multipliers), 'client')})"
        entries[name] = chosen
        for axes, values, what in ((left, bound, "C"), (right, noise, "σ")):
            sketch.line(axes, rounds, values, chosen)
            held, marked = dict(zip(rounds, values, strict=True)), thinned(rounds)
            tips = [
                Tip(f"ε = {level:g} ({plan.privacy.adjacency}), round {t}: {what} = {held[t]:.3g}")
                for t in marked
            ]
            sketch.points(axes, marked, [held[t] for t in marked], tips, chosen, size=3.6)
        rows += [
            (f"ε = {level:g}, round {t}", number(c), number(s))
            for t, c, s in zip(rounds, bound, noise, strict=True)
        ]
    for axes, what in (
        (left, "threshold C (norm of a gradient)"),
        (right, "noise σ (per coordinate of a sum)"),
    ):
        sketch.logarithmic(axes, y=True)
        sketch.whole(axes)
        sketch.label(axes, "round", what)
    sketch.legend(entries)
    return sketch.done(
        "Thresholds and noise over the rounds",
        f"Left the clipping threshold C, right the noise σ = (σ/C)·C of a clipped sum, by the ε "
        f"that noise is calibrated to ({said}). {_where_from(plan, followed is not None)}",
        Table(("level and round", "C", "σ"), tuple(rows), f"ε at {said}"),
    )


def _levels(plan: Plan) -> list[float]:
    """The ε that noise is calibrated to; of many some, evenly, with both ends."""
    found = sorted({client.epsilon for client in plan.clients})
    if len(found) <= MOST_LEVELS:
        return found
    return [found[round(n)] for n in np.linspace(0, len(found) - 1, MOST_LEVELS)]


def _planned(plan: Plan, level: float) -> dict[int, float]:
    bound = plan.algorithm.bound
    return {t + 1: bound(level, round=t, rounds=plan.rounds) for t in range(plan.rounds)}


def _followed(outcomes: Sequence[RunResult]) -> dict[int, float] | None:
    """The thresholds that noised counts led to, the mean over seeds."""
    found: dict[int, list[float]] = {}
    for outcome in outcomes:
        for row in outcome.history:
            if row.clipping_bound is not None:
                found.setdefault(row.round, []).append(row.clipping_bound)
    return {one: statistics.fmean(found[one]) for one in sorted(found)} or None


def _where_from(plan: Plan, followed: bool) -> str:
    if followed:
        said = (
            "Noised counts moved C from round to round; drawn is the mean over seeds, and where "
            "each client has its own the median of theirs."
        )
    else:
        said = "C depends on the budget and the round alone, so it costs no privacy."
    if plan.privacy.spending.policy != "even":
        said += " σ is that of even spending; this plan moves it from round to round."
    return said


def curve_picture(curve: Curve, *, terms: str) -> Picture:
    """F(ε), with the matrix P where the curve holds its grid.

    >>> curve = Curve(family="power", coefficients=(0.5, 0.25))
    >>> curve_picture(curve, terms="δ = 1e-05, zero-out").numbers.rows[0]
    ('0.01', '0.158')
    """
    if curve.evidence.choices:
        return _with_grid(curve)
    sketch = Sketch(height=3.2)
    axes = sketch.axes[0]
    epsilons = [float(one) for one in np.geomspace(*curve.domain, 25)]
    values = [curve(one) for one in epsilons]
    sketch.line(axes, epsilons, values, look(0))
    tips = [
        Tip(f"ε = {e:.3g} ({terms}): C = {c:.3g}") for e, c in zip(epsilons, values, strict=True)
    ]
    sketch.points(axes, epsilons, values, tips, look(0), size=3.4)
    sketch.logarithmic(axes, x=True, y=True)
    sketch.label(axes, f"budget ε ({terms})", "threshold C = F(ε) (norm of a gradient)")
    rows = [(f"{e:.3g}", number(c)) for e, c in zip(epsilons, values, strict=True)]
    return sketch.done(
        "The curve F(ε)",
        f"Which clipping threshold a budget asks for: {curve.family} "
        f"[{', '.join(f'{one:g}' for one in curve.coefficients)}]. ε at {terms}.",
        Table(("budget ε", "F(ε)"), tuple(rows), f"ε at {terms}"),
    )


def _with_grid(curve: Curve) -> Picture:
    """The picture that ``pacdp curve plot`` draws, with the words that a page needs."""
    evidence = curve.evidence
    said = f"δ = {evidence.plan['delta']:g}, {evidence.plan['adjacency']}"
    drawn = draw_curve(curve)
    _say_terms(drawn, said)
    metric = evidence.metric
    rows = [
        (
            *(f"{epsilon:.4g}", number(choice.bound)),
            *(number(curve(epsilon)), score(curve.expected_score(epsilon), metric)),
        )
        for epsilon, choice in zip(evidence.budgets, evidence.choices, strict=True)
    ]
    return Picture(
        drawn,
        "The matrix P and the curve F(ε)",
        "Left what each budget and threshold reach on public proxy records, right the curves "
        f"through the chosen thresholds C*; {curve.family} is used. ε at {said}.",
        Table(
            ("budget ε", "C*", "F(ε)", f"expected {metric} on the proxy"),
            tuple(rows),
            f"ε at {said}",
        ),
    )


def _say_terms(drawn: Figure, said: str) -> None:
    for axes in drawn.axes:
        if "ε" in axes.get_xlabel():
            axes.set_xlabel(f"budget ε ({said})")


def curve_of(arms: Mapping[str, Sequence[RunResult]]) -> Curve | None:
    """The curve that the first arm with one was run with."""
    for outcomes in arms.values():
        if held := outcomes[0].plan.settings.get("curve"):
            return Curve.model_validate(held)
    return None
