"""What methods reach: over the rounds, in the end, and by budget."""

from collections.abc import Mapping, Sequence

from pacdp.formatting import NOTHING, counted, mean_and_deviation, score
from pacdp.report.comparison import (
    Arms,
    by_level,
    chance_of,
    checked,
    finals,
    metric_of,
    over_rounds,
    terms_of,
)
from pacdp.report.figures.base import Picture, Sketch, Table, Tip, plain, short, thinned
from pacdp.report.figures.palette import Look, look, looks_of
from pacdp.stats import SampleStats


def accuracy_over_rounds(arms: Arms) -> Picture:
    """Mean over seeds in a band of one standard deviation of the headline metric."""
    metric, chance, looks = metric_of(checked(arms)), chance_of(arms), looks_of(arms)
    sketch, factor = Sketch(height=4.2), _factor(metric)
    axes = sketch.axes[0]
    spreads = {label: over_rounds(outcomes, metric) for label, outcomes in arms.items()}
    for label, spread in spreads.items():
        rounds = list(spread)
        mean = [factor * one.mean for one in spread.values()]
        deviation = [factor * one.deviation for one in spread.values()]
        sketch.line(axes, rounds, mean, looks[label])
        if any(deviation):
            axes.fill_between(
                rounds,
                [m - d for m, d in zip(mean, deviation, strict=True)],
                [m + d for m, d in zip(mean, deviation, strict=True)],
                color=looks[label].colour,
                # Many bands over one another hide the lines.
                alpha=0.1 if len(arms) <= 4 else 0.045,
                linewidth=0,
            )
        marked = thinned(rounds)
        tips = [
            Tip(f"{label}, round {one}: {_spread(spread[one], metric, len(arms[label]))}")
            for one in marked
        ]
        heights = [factor * spread[one].mean for one in marked]
        sketch.points(axes, marked, heights, tips, looks[label])
    if chance is not None:
        sketch.level(axes, factor * chance)
    sketch.whole(axes)
    sketch.label(axes, "round", _axis(metric))
    sketch.legend(looks, chance=chance)
    every = sorted({one for spread in spreads.values() for one in spread})
    numbers = Table(
        ("round", *arms),
        tuple(
            (
                str(one),
                *(
                    mean_and_deviation(spread[one].mean, spread[one].deviation, metric)
                    if one in spread
                    else NOTHING
                    for spread in spreads.values()
                ),
            )
            for one in every
        ),
        f"{metric} on test records, mean ± standard deviation over seeds",
    )
    return sketch.done(
        f"{metric.capitalize()} over the rounds",
        f"{metric.capitalize()} of the shared model on test records after each round"
        f"{_band(arms)}{_chance_words(chance)}.",
        numbers,
    )


def final_by_method(arms: Arms) -> Picture:
    """The final score of each arm: its mean, its spread, and every seed."""
    metric, chance, looks = metric_of(checked(arms)), chance_of(arms), looks_of(arms)
    factor, rows = _factor(metric), []
    sketch = Sketch(height=1.1 + 0.34 * len(arms))
    axes = sketch.axes[0]
    for place, (label, outcomes) in enumerate(arms.items()):
        found = finals(outcomes, metric)
        if not found:
            rows.append((label, NOTHING, NOTHING))
            continue
        spread = SampleStats.of(list(found.values()))
        said = _spread(spread, metric, len(found))
        axes.errorbar(
            factor * spread.mean,
            place,
            xerr=factor * spread.deviation,
            color=looks[label].colour,
            linewidth=2.6,
            alpha=0.45,
        )
        each = [factor * one for one in found.values()]
        tips = [Tip(f"{label}, seed {seed}: {score(one, metric)}") for seed, one in found.items()]
        if len(found) > 1:
            above = [place - 0.24] * len(each)
            sketch.points(axes, each, above, tips, looks[label], size=3.2, marker="o", alpha=0.7)
        mean = [factor * spread.mean]
        sketch.points(axes, mean, [place], [Tip(f"{label}: {said}")], looks[label], size=7)
        rows.append((label, said, ", ".join(score(one, metric) for one in found.values())))
    axes.set_yticks(range(len(arms)), [plain(short(label, 44)) for label in arms])
    axes.set_ylim(len(arms) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    if chance is not None:
        sketch.level(axes, factor * chance, upright=True)
        sketch.legend({}, chance=chance)
    sketch.label(axes, _axis(metric), "")
    return sketch.done(
        f"Final {metric} by method",
        f"The large mark is the mean, the bar one standard deviation to both sides, and each small "
        f"point one seed{_chance_words(chance)}.",
        Table(("method", f"final {metric}", "each seed"), tuple(rows)),
    )


def by_epsilon(
    series: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    terms: str,
    chance: float | None = None,
    metric: str = "accuracy",
    looks: Mapping[str, Look] | None = None,
    title: str = "",
    what: str = "budget",
) -> Picture:
    """Scores of each series over ε, one for each seed. ``terms`` says what every ε stands for.

    >>> picture = by_epsilon({"fixed": {0.1: [0.5, 0.6], 1.0: [0.8]}}, terms="δ = 1e-05, zero-out")
    >>> picture.numbers.rows
    (('0.1', '55.0 ± 7.1 %'), ('1', '80.0 ± 0.0 %'))
    """
    sketch, factor = Sketch(), _factor(metric)
    axes, chosen = sketch.axes[0], looks or {name: look(n) for n, name in enumerate(series)}
    for place, (name, values) in enumerate(series.items()):
        spreads = {epsilon: SampleStats.of(values[epsilon]) for epsilon in sorted(values)}
        # Side by side, so that bars at the same ε can be told apart.
        shift = 1.035 ** (place - (len(series) - 1) / 2)
        x = [epsilon * shift for epsilon in spreads]
        y = [factor * one.mean for one in spreads.values()]
        sketch.line(axes, x, y, chosen[name])
        axes.errorbar(
            *(x, y),
            yerr=[factor * one.deviation for one in spreads.values()],
            fmt="none",
            ecolor=chosen[name].colour,
            alpha=0.45,
            linewidth=1.6,
        )
        tips = [
            Tip(f"{name}, ε = {epsilon:g} ({terms}): {_spread(one, metric, len(values[epsilon]))}")
            for epsilon, one in spreads.items()
        ]
        sketch.points(axes, x, y, tips, chosen[name], size=5)
    sketch.logarithmic(axes, x=True)
    every = sorted({epsilon for values in series.values() for epsilon in values})
    sketch.ticks(axes.xaxis, every)
    if chance is not None:
        sketch.level(axes, factor * chance)
    sketch.label(axes, f"{what} ε ({terms})", _axis(metric))
    sketch.legend({name: chosen[name] for name in series}, chance=chance)
    rows = [
        (f"{epsilon:g}", *(_cell(values, epsilon, metric) for values in series.values()))
        for epsilon in every
    ]
    return sketch.done(
        title or f"{metric.capitalize()} by ε",
        f"Mean over seeds, with one standard deviation to both sides{_chance_words(chance)}. "
        f"ε at {terms}.",
        Table((f"{what} ε", *series), tuple(rows), f"{metric} by {what} ε at {terms}"),
    )


def accuracy_by_level(arms: Arms) -> Picture | None:
    """The accuracy for the records of those who hold each budget: who pays for privacy.

    None where there are no two levels to compare.
    """
    plan = next(iter(checked(arms).values()))[0].plan
    series = {label: by_level(outcomes) for label, outcomes in arms.items()}
    series = {label: levels for label, levels in series.items() if levels}
    if max((len(levels) for levels in series.values()), default=0) < 2:
        return None
    return by_epsilon(
        series,
        terms=terms_of(plan),
        # Chance is another for those of each level.
        looks=looks_of(arms),
        title="Accuracy by budget level",
    )


def _cell(values: Mapping[float, Sequence[float]], epsilon: float, metric: str) -> str:
    if epsilon not in values:
        return NOTHING
    spread = SampleStats.of(values[epsilon])
    return mean_and_deviation(spread.mean, spread.deviation, metric)


def _factor(metric: str) -> float:
    return 100 if metric == "accuracy" else 1


def _axis(metric: str) -> str:
    return "test accuracy in %" if metric == "accuracy" else f"test {metric}"


def _spread(spread: SampleStats, metric: str, seeds: int) -> str:
    if seeds == 1:
        return score(spread.mean, metric)
    said = mean_and_deviation(spread.mean, spread.deviation, metric)
    return f"{said} over {counted(seeds, 'seed')}"


def _band(arms: Arms) -> str:
    most = max(len(outcomes) for outcomes in arms.values())
    if most == 1:
        return ", of one seed"
    return f": the mean over {most} seeds, in a band of one standard deviation"


def _chance_words(chance: float | None) -> str:
    if chance is None:
        return ""
    return "; chance is what always saying the most frequent class reaches"
