"""Fitting a curve: simulate the grid, select a clipping bound for each budget, fit F(ε)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pacdp import __version__
from pacdp.curve import (
    BoundChoice,
    Curve,
    CurveEvidence,
    fit_curve_families,
    select_bounds,
)
from pacdp.curve.bound_selection import estimate_score
from pacdp.curve.evidence import ProxyProvenance, RateChoices, Regret
from pacdp.offline.configuration import Offline
from pacdp.offline.grid import Cell, Grid, Matrix, ScoreStore, Worker, run_grid, train_in_process
from pacdp.offline.proxy_task import ProxyTask
from pacdp.progress import Progress, ignore_progress

# Number of bounds added at an edge each time the grid is widened.
_ADDED_BOUNDS = 3


def fit_curve(
    proxy_task: ProxyTask,
    offline: Offline,
    *,
    store: ScoreStore | None = None,
    worker: Worker = train_in_process,
    progress: Progress = ignore_progress,
) -> Curve:
    """Simulate the grid, select C* for each budget, fit F and measure how good it is.

    The curve's evidence holds the matrix P with every seed, the selected bounds, the fits of all
    families, the simulated plan and the origin of the proxy. Regret is measured on fresh seeds.
    """
    store = ScoreStore(None, proxy_task.digest) if store is None else store
    budgets, bounds = offline.axis("budgets"), offline.axis("bounds")
    # Measuring the regret takes two more trainings for each budget and seed.
    expected = len(budgets) * (len(bounds) + 2) * offline.seeds

    def observe(cell: Cell, score: float) -> None:
        done = len(store.scores)
        progress(f"fitting F on {proxy_task.proxy.data.name}", done, max(done, expected))

    for _ in range((offline.widen or 0) + 1):
        grid = Grid(budgets, bounds, tuple(range(offline.seeds)))
        matrix = run_grid(proxy_task, grid, store=store, worker=worker, observe=observe)
        choices = select_bounds(matrix.scores, bounds, rule=offline.rule)
        bounds = _widen_bounds(grid.bounds, choices)
        if bounds == grid.bounds:
            break
    fitted = fit_curve_families(
        matrix.budgets,
        [choice.bound for choice in choices],
        spreads=[choice.spread for choice in choices],
        family=offline.family,
        monotone=offline.monotone,
    )
    regret = _measure_regret(proxy_task, fitted.curve, matrix, store, worker, observe)
    proxy = proxy_task.proxy
    evidence = CurveEvidence(
        budgets=matrix.budgets,
        bounds=matrix.bounds,
        seeds=matrix.seeds,
        scores=matrix.scores.tolist(),
        metric=proxy.data.task.score_name,
        rule=offline.rule,
        choices=tuple(choices),
        expected=tuple(
            estimate_score(matrix.scores[:, row], matrix.bounds, at=fitted.curve(epsilon))
            for row, epsilon in enumerate(matrix.budgets)
        ),
        outliers=tuple(matrix.budgets[index] for index in fitted.outliers),
        families=fitted.families,
        regret=regret,
        plan=proxy_task.terms,
        unit=proxy_task.unit,
        proxy=ProxyProvenance(
            name=proxy.data.name,
            stands_for=proxy.stands_for,
            made_by=proxy.made_by,
            source=str(proxy.data.provenance),
            sha256=proxy.data.train.digest,
        ),
        version=__version__,
        rates=tuple(
            _simulate_rate(proxy_task, rate, grid, offline, worker) for rate in offline.rates
        ),
    )
    return fitted.curve.model_copy(update={"evidence": evidence})


def _widen_bounds(bounds: tuple[float, ...], choices: Sequence[BoundChoice]) -> tuple[float, ...]:
    """Extend the bounds in equal ratios beyond each edge at which a selected bound lies."""
    middle = (bounds[0] * bounds[-1]) ** 0.5
    at_edge = [choice.bound for choice in choices if choice.edge]
    below, above = bounds[1] / bounds[0], bounds[-1] / bounds[-2]
    steps = range(1, _ADDED_BOUNDS + 1)
    widened = bounds
    if any(bound < middle for bound in at_edge):
        widened = (*(bounds[0] / below**n for n in reversed(steps)), *widened)
    if any(bound >= middle for bound in at_edge):
        widened = (*widened, *(bounds[-1] * above**n for n in steps))
    return widened


def _measure_regret(
    proxy_task: ProxyTask,
    curve: Curve,
    matrix: Matrix,
    store: ScoreStore,
    worker: Worker,
    observe: Callable[[Cell, float], None],
) -> tuple[Regret, ...]:
    """Measure on fresh seeds what F loses against the best bound of the grid, for each budget.

    The best bound is taken from the seeds of the fit: on the fresh ones it would partly be luck.
    """
    seeds = [seed + len(matrix.seeds) for seed in matrix.seeds]
    pairs = {
        epsilon: (curve(epsilon), matrix.bounds[int(mean.argmax())])
        for epsilon, mean in zip(matrix.budgets, matrix.mean, strict=True)
    }
    cells = {Cell(e, bound, seed) for e, pair in pairs.items() for bound in pair for seed in seeds}
    for cell, score in worker(proxy_task, sorted(cells - set(store.scores))):
        store.add(cell, score)
        observe(cell, score)
    rows = []
    for epsilon, pair in pairs.items():
        reached, best = (
            np.array([store.scores[Cell(epsilon, bound, seed)] for seed in seeds]) for bound in pair
        )
        lost = best - reached
        error = lost.std(ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else 0.0
        rows.append(
            Regret(
                epsilon=epsilon,
                bound=pair[0],
                best_of_grid=pair[1],
                score=reached.mean(),
                regret=lost.mean(),
                standard_error=error,
            )
        )
    return tuple(rows)


def _simulate_rate(
    proxy_task: ProxyTask, rate: float, grid: Grid, offline: Offline, worker: Worker
) -> RateChoices:
    """Select C* under another learning rate; with nearly all gradients clipped, lr·C matters."""
    training = proxy_task.recipe.training
    optimiser = training.optimiser.model_copy(update={"lr": rate})
    training = training.model_copy(update={"optimiser": optimiser})
    other = replace(proxy_task, recipe=proxy_task.recipe.model_copy(update={"training": training}))
    matrix = run_grid(other, grid, worker=worker)
    choices = select_bounds(matrix.scores, matrix.bounds, rule=offline.rule)
    return RateChoices(
        lr=rate,
        bounds=tuple(choice.bound for choice in choices),
        product=tuple(rate * choice.bound for choice in choices),
        scores=tuple(choice.score for choice in choices),
    )
