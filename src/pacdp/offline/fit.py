"""From a grid to the curve, with all that it was made from."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pacdp import __version__
from pacdp.curve import Choice, Curve, Fitted, choose, fit
from pacdp.curve.threshold_selection import smoothed
from pacdp.offline.configuration import Offline
from pacdp.offline.grid import Cell, Grid, Kept, Matrix, Worker, in_process, run_grid
from pacdp.offline.proxy_task import Setting

Observer = Callable[[Cell, float], None]

# Bounds that are added at an edge each time the grid is widened.
_WIDER = 3


def fit_curve(
    setting: Setting,
    offline: Offline,
    *,
    kept: Kept | None = None,
    worker: Worker = in_process,
    observe: Observer | None = None,
) -> Curve:
    """Simulate the grid, choose C* for each budget, fit F, and say how good it is.

    The curve's evidence holds the matrix P with every seed, the choices, all families, the plan it
    was made for and where the proxy came from. Regret is measured on seeds that it did not see.
    """
    kept = Kept(None, setting.digest) if kept is None else kept
    seeds = tuple(range(offline.seeds))
    budgets, bounds = offline.axis("budgets"), offline.axis("bounds")
    widened = 0
    while True:
        grid = Grid(budgets, bounds, seeds)
        matrix = run_grid(setting, grid, kept=kept, worker=worker, observe=observe)
        choices = [
            choose(matrix.scores[:, row], bounds, rule=offline.rule) for row in range(len(budgets))
        ]
        wider = _wider(bounds, choices)
        if offline.widen is None or widened >= offline.widen or wider == bounds:
            break
        bounds, widened = wider, widened + 1
    found = fit(
        budgets,
        [choice.bound for choice in choices],
        spreads=[choice.spread for choice in choices],
        family=offline.family,
        monotone=offline.monotone,
    )
    fresh = tuple(range(offline.seeds, 2 * offline.seeds))
    lost = _regret(setting, found.curve, matrix, fresh, kept, worker, observe)
    evidence = _evidence(setting, offline, matrix, choices, found, lost)
    evidence["rates"] = [_under(setting, rate, grid, offline, worker) for rate in offline.rates]
    return found.curve.model_copy(update={"evidence": evidence})


def _wider(bounds: tuple[float, ...], choices: Sequence[Choice]) -> tuple[float, ...]:
    """The bounds with more at an edge that a choice lies at, at the same distance."""
    step = bounds[1] / bounds[0], bounds[-1] / bounds[-2]
    made = list(bounds)
    middle = (bounds[0] * bounds[-1]) ** 0.5
    at_edge = [choice.bound for choice in choices if choice.edge]
    if any(bound < middle for bound in at_edge):
        made = [bounds[0] / step[0] ** n for n in range(_WIDER, 0, -1)] + made
    if any(bound >= middle for bound in at_edge):
        made += [bounds[-1] * step[1] ** n for n in range(1, _WIDER + 1)]
    return tuple(made)


def _regret(
    setting: Setting,
    curve: Curve,
    matrix: Matrix,
    seeds: tuple[int, ...],
    kept: Kept,
    worker: Worker,
    observe: Observer | None,
) -> list[dict[str, float]]:
    """What F loses against the best bound of the grid, budget by budget, on fresh seeds.

    The best bound is that of the fit's own seeds: the best of the fresh ones would be partly luck.
    """
    pairs = [
        (epsilon, curve(epsilon), matrix.bounds[int(matrix.mean[row].argmax())])
        for row, epsilon in enumerate(matrix.budgets)
    ]
    cells = {Cell(e, c, s) for e, *both in pairs for c in both for s in seeds}
    for cell, score in worker(setting, sorted(cells - set(kept.scores))):
        kept.add(cell, score)
        if observe is not None:
            observe(cell, score)
    found = []
    for epsilon, ours, best in pairs:
        reached = np.array([kept.scores[Cell(epsilon, ours, seed)] for seed in seeds])
        apart = np.array([kept.scores[Cell(epsilon, best, seed)] for seed in seeds]) - reached
        error = apart.std(ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else 0.0
        found.append(
            {
                "epsilon": epsilon,
                "bound": ours,
                "best_of_grid": best,
                "score": float(reached.mean()),
                "regret": float(apart.mean()),
                "standard_error": float(error),
            }
        )
    return found


def _under(
    setting: Setting, rate: float, grid: Grid, offline: Offline, worker: Worker
) -> dict[str, Any]:
    """What C* would be under another learning rate; where nearly all is clipped, lr·C is one."""
    training = setting.training
    slower = training.optimiser.model_copy(update={"lr": rate})
    other = replace(setting, training=training.model_copy(update={"optimiser": slower}))
    matrix = run_grid(other, grid, worker=worker)
    choices = [
        choose(matrix.scores[:, row], matrix.bounds, rule=offline.rule)
        for row in range(len(matrix.budgets))
    ]
    return {
        "lr": rate,
        "bounds": [choice.bound for choice in choices],
        "product": [rate * choice.bound for choice in choices],
        "scores": [choice.score for choice in choices],
    }


def _evidence(
    setting: Setting,
    offline: Offline,
    matrix: Matrix,
    choices: Sequence[Choice],
    found: Fitted,
    lost: list[dict[str, float]],
) -> dict[str, Any]:
    proxy = setting.proxy
    expected = [
        smoothed(matrix.scores[:, row], matrix.bounds, at=found.curve(epsilon))
        for row, epsilon in enumerate(matrix.budgets)
    ]
    return {
        "budgets": list(matrix.budgets),
        "bounds": list(matrix.bounds),
        "seeds": list(matrix.seeds),
        "scores": matrix.scores.tolist(),
        "metric": proxy.data.task.score_name,
        "rule": offline.rule,
        "choices": [asdict(choice) for choice in choices],
        "expected": expected,
        "outliers": [matrix.budgets[number] for number in found.outliers],
        "families": {
            one.family: {
                "coefficients": None if one.curve is None else list(one.curve.coefficients),
                "r_squared": one.r_squared,
                "left_out": one.left_out,
                "refused": one.refused,
            }
            for one in found.fits
        },
        "regret": lost,
        "plan": setting.terms,
        "unit": setting.unit,
        "proxy": {
            "name": proxy.data.name,
            "stands_for": proxy.stands_for,
            "made_by": proxy.made_by,
            "source": str(proxy.data.provenance),
            "sha256": proxy.data.train.digest,
        },
        "version": __version__,
    }
