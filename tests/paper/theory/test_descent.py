"""The simulated trainings: against explicit clipping, a closed form, and the bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.errors import InputError
from pacdp.paper.theory.descent import (
    DescentRun,
    measure_noise_part,
    run_descent,
    run_with_best_step,
)
from pacdp.paper.theory.problems import Logistic, Quadratic, Wells
from pacdp.paper.theory.rates import RateParameters
from pacdp.paper.theory.slopes import fit_slope

PROBLEMS = [Quadratic(dimension=3), Wells(dimension=3), Logistic(dimension=3, decay=0.5)]


def own_gradients(problem, model, draw, repeat):
    """Each example's gradient, written out."""
    if isinstance(problem, Logistic):
        features, labels = draw[0][repeat], draw[1][repeat]
        return (1 / (1 + np.exp(-features @ model)) - labels)[:, None] * features
    if isinstance(problem, Quadratic):
        return problem.curvatures * model + draw[0][repeat]
    return 2 * model / (1 + model**2) ** 2 + draw[0][repeat]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@given(seed=st.integers(0, 1000), tight=st.floats(0.05, 3))
@settings(max_examples=25)
def test_the_clipped_mean_is_that_of_the_examples_one_by_one(problem, seed, tight):
    random = np.random.default_rng(seed)
    models = random.normal(size=(2, 4, 3))
    draw = problem.draw(random, 4, 6)
    bounds = np.array([[tight], [2 * tight]])
    # The second cell has but four examples.
    shares = np.array([[1 / 6] * 6, [1 / 4] * 4 + [0] * 2])
    found = problem.clipped_mean(models, draw, bounds, shares)
    for cell, many in ((0, 6), (1, 4)):
        for repeat in range(4):
            gradients = own_gradients(problem, models[cell, repeat], draw, repeat)[:many]
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            clipped = gradients * np.minimum(1, bounds[cell] / norms)
            assert found[cell, repeat] == pytest.approx(clipped.mean(0), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_the_gradient_is_that_of_the_error(problem):
    model = np.random.default_rng(0).normal(size=3)
    small = 1e-5
    slopes = [
        (problem.error(model + small * unit) - problem.error(model - small * unit)) / (2 * small)
        for unit in np.eye(3)
    ]
    assert problem.gradient(model) == pytest.approx(slopes, rel=1e-5)
    assert problem.error(model) > 0


def expected(problem: Quadratic, run: DescentRun) -> float:
    """E f(w_T) − f* of a quadratic without clipping, in closed form."""
    shrink = 1 - run.step * problem.curvatures
    variance = problem.spread**2 / (run.clients * run.batch) + run.sigma**2
    left = shrink ** (2 * run.rounds)
    spread = run.step**2 * variance * (1 - left) / (1 - shrink**2)
    return float((problem.curvatures * (left * problem.start**2 + spread)).sum() / 2)


quadratics = st.builds(
    Quadratic, dimension=st.integers(1, 8), strong_convexity=st.floats(0.05, 0.9)
)
runs = st.builds(
    DescentRun,
    rounds=st.integers(1, 40),
    clients=st.integers(1, 4),
    batch=st.integers(1, 8),
    # So little that no gradient is ever clipped.
    noise_multiplier=st.floats(0, 0.02),
    clipping_bound=st.just(100.0),
    step=st.floats(0.05, 0.95),
)


@given(problem=quadratics, run=runs)
@settings(max_examples=25)
def test_a_quadratic_ends_where_its_closed_form_says(problem, run):
    errors = run_descent(problem, [run], measure="last", repeats=300)[0]
    uncertain = errors.std() / math.sqrt(len(errors))
    assert abs(errors.mean() - expected(problem, run)) <= 6 * uncertain + 1e-9


@given(problem=quadratics, run=runs)
def test_the_closed_form_is_within_the_bound_of_theorem_4(problem, run):
    parameters = RateParameters(
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity,
        gap=float(problem.error(problem.start)),
        sampling_variance=problem.dimension * problem.spread**2,
        dimension=problem.dimension,
        clients=run.clients,
        batch=run.batch,
        clipping_bound=run.clipping_bound,
    )
    at = {"rounds": run.rounds, "step": run.step, "noise_multiplier": run.noise_multiplier}
    assert expected(problem, run) <= parameters.error_bound("strongly convex", **at) * (1 + 1e-9)


@given(
    problem=quadratics,
    run=runs.filter(lambda run: run.noise_multiplier > 1e-3),
    setting=st.sampled_from(["noise_multiplier", "clipping_bound"]),
)
@settings(max_examples=15)
def test_the_noise_part_of_a_quadratic_is_exactly_quadratic_in_z_and_c(problem, run, setting):
    factors = [1.0, 2.0, 4.0]
    louder = [replace(run, **{setting: getattr(run, setting) * factor}) for factor in factors]
    found = fit_slope(factors, measure_noise_part(problem, louder, measure="last", repeats=8))
    assert found.value == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize(("setting", "slope"), [("batch", -2), ("clients", -1)])
def test_the_noise_part_falls_with_batch_and_clients_as_derived_and_not_as_stated(setting, slope):
    base = DescentRun(rounds=30, noise_multiplier=1.0, step=0.5, clipping_bound=100.0)
    more = [replace(base, **{setting: value}) for value in (2, 4, 8)]
    found = fit_slope([2, 4, 8], measure_noise_part(Quadratic(), more, measure="last", repeats=16))
    assert found.value == pytest.approx(slope, abs=0.02)


def test_errors_of_the_other_problems_are_within_their_bounds():
    for theorem, problem, measure, step in (
        ("non-convex", Wells(dimension=4), "gradient", 0.25),
        ("convex", Logistic(dimension=4), "average", 1.5),
    ):
        run = DescentRun(rounds=40, step=step, noise_multiplier=0.5)
        optimum = problem.optimum if isinstance(problem, Logistic) else 0 * problem.start
        parameters = RateParameters(
            smoothness=problem.smoothness,
            gap=float(problem.error(problem.start)),
            distance=float(np.linalg.norm(problem.start - optimum)),
            sampling_variance=4.0,
            dimension=4,
            clients=run.clients,
            batch=run.batch,
            clipping_bound=run.clipping_bound,
        )
        reached = run_descent(problem, [run], measure=measure, repeats=32).mean()
        limit = parameters.error_bound(theorem, rounds=40, step=step, noise_multiplier=0.5)
        assert limit / 100 < reached < limit


def test_a_cell_does_not_depend_on_those_beside_it():
    one = DescentRun(rounds=5, step=0.3, noise_multiplier=0.1)
    other = DescentRun(rounds=9, step=0.1, noise_multiplier=0.4)
    for measure in ("average", "last", "gradient"):
        both = run_descent(Wells(), [one, other], measure=measure, repeats=3)
        alone = run_descent(Wells(), [other], measure=measure, repeats=3)
        np.testing.assert_allclose(both[1], alone[0])


def test_mirrored_trainings_are_two_with_opposite_noise():
    run = DescentRun(rounds=1, step=0.5, noise_multiplier=1.0)
    problem = Quadratic(dimension=2, spread=0.0)
    # After one step w = s ± e: the mean of the squares is s² + e², without any 2·s·e.
    both = run_descent(problem, [run], measure="last", repeats=2, mirrored=True)[0]
    quiet = run_descent(problem, [replace(run, noise_multiplier=0.0)], measure="last", repeats=2)[0]
    double = replace(run, noise_multiplier=2.0)
    four = run_descent(problem, [double], measure="last", repeats=2, mirrored=True)[0]
    assert four - quiet == pytest.approx(4 * (both - quiet))


def test_the_tuned_step_is_the_best_of_those_tried():
    run = DescentRun(rounds=20, step=1.0, noise_multiplier=1.0)
    best = run_with_best_step(Quadratic(), run, measure="last", repeats=8).mean()
    for share in (0.03, 0.3, 1.0):
        other = run_descent(Quadratic(), [replace(run, step=share)], measure="last", repeats=8)
        assert best <= other.mean() * 1.1


def test_what_is_no_run_is_refused():
    with pytest.raises(InputError, match="rounds = 0"):
        DescentRun(rounds=0, step=1.0)
    with pytest.raises(InputError, match="runs: there are none"):
        run_descent(Wells(), [], measure="last", repeats=1)
    with pytest.raises(InputError, match="measure = 'all'"):
        run_descent(Wells(), [DescentRun(rounds=1, step=0.1)], measure="all", repeats=1)
