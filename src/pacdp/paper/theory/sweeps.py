"""Theorems 2 to 4, measured: how the error scales with each setting.

The noise part of an error is the error with noise minus the error without, on the same examples.
Each sweep varies one setting and keeps the others fixed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pacdp.paper.theory.descent import (
    DescentRun,
    ErrorMeasure,
    measure_noise_part,
    run_descent,
    run_with_best_step,
)
from pacdp.paper.theory.problems import Logistic, Problem, Quadratic, Wells
from pacdp.paper.theory.rates import Theorem
from pacdp.paper.theory.slopes import Slope, assess_slope, fit_slope
from pacdp.validation import FloatArray

NOISES = (0.5, 0.7, 1.0, 1.4, 2.0)
BOUNDS = (20.0, 28.0, 40.0, 56.0, 80.0)
BATCHES = (8, 12, 16, 24, 32)
CLIENTS = (2, 4, 8, 16, 32)
ROUNDS = (64, 128, 256, 512, 1024)
DIMENSIONS = (8, 16, 32, 64)
CURVATURES = (0.05, 0.1, 0.2, 0.4)
# A clipping bound that nearly all gradients exceed.
TIGHT = 0.05


@dataclass(frozen=True, eq=False)
class Sweep:
    """A statement of a theorem and its measurement."""

    theorem: Theorem
    part: str
    """The measured part of the error, and the choice of the step size."""
    setting: str
    """Symbol of the varied setting."""
    values: Sequence[float]
    errors: FloatArray
    """(values, repeats)."""
    stated: float
    """Slope according to the theorem."""
    derived: float | None
    """Slope according to the descent lemma, if there is one."""

    @cached_property
    def slope(self) -> Slope:
        """Return the measured slope."""
        return fit_slope(self.values, self.errors)

    @property
    def verdict(self) -> str:
        """Return whether the measurement agrees with the statement: yes, loose or no."""
        return assess_slope(self.slope, self.stated)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A theorem, its problem, and how it is trained."""

    theorem: Theorem
    make_problem: Callable[[int], Problem]
    """The problem in d dimensions."""
    measure: ErrorMeasure = "average"
    noise: float
    """Scale of the noise multipliers: small enough that the model stays near the optimum."""
    tuned_noises: tuple[float, ...]
    """For tuned steps: enough noise to determine the step, and little enough to make progress."""
    make_run: Callable[[Problem, int], DescentRun]
    """The run with so many rounds, without noise."""
    largest_step: float
    rounds_slope: float = -0.5
    """Stated slope of the error without noise, and derived slope of the noise part, over T."""
    tuned_noise_slope: float = 1.0
    """Derived slope of the error with a tuned step, over z."""


def _root_step(scale: float) -> Callable[[Problem, int], DescentRun]:
    """Return runs with η = scale/√T, as in Theorems 2 and 3."""
    return lambda problem, rounds: DescentRun(rounds=rounds, step=scale / math.sqrt(rounds))


def _decaying_step(problem: Problem, rounds: int) -> DescentRun:
    """Return a run with η_t = 2/(μ·(t + 2L/μ)): the paper's 2/(μ(t+1)), limited to at most 1/L."""
    assert isinstance(problem, Quadratic)
    decay = problem.strong_convexity / problem.smoothness / 2
    return DescentRun(rounds=rounds, step=1 / problem.smoothness, decay=decay)


CASES = (
    Case(
        theorem="non-convex",
        make_problem=lambda dimension: Wells(dimension=dimension),
        measure="gradient",
        noise=0.1,
        tuned_noises=(0.1, 0.2, 0.4, 0.8),
        make_run=_root_step(2.0),
        largest_step=0.5,
    ),
    Case(
        theorem="convex",
        make_problem=lambda dimension: Logistic(dimension=dimension, decay=0.5),
        noise=0.03,
        tuned_noises=(0.05, 0.1, 0.2, 0.4, 0.8),
        make_run=_root_step(12.0),
        largest_step=1.6,
    ),
    Case(
        theorem="strongly convex",
        make_problem=lambda dimension: Quadratic(dimension=dimension),
        noise=1.0,
        tuned_noises=(0.2, 0.4, 0.8, 1.6),
        make_run=_decaying_step,
        largest_step=1.0,
        rounds_slope=-1.0,
        tuned_noise_slope=2.0,
    ),
)


def measure_sweeps(*, repeats: int = 64, rounds: int = 256, dimension: int = 16) -> list[Sweep]:
    """Measure every statement of Theorems 2 to 4 that a slope can test.

    >>> sweeps = measure_sweeps(repeats=4, rounds=32, dimension=4)
    >>> sorted({sweep.theorem for sweep in sweeps})
    ['convex', 'non-convex', 'strongly convex']
    """
    return [sweep for case in CASES for sweep in _sweep_case(case, repeats, rounds, dimension)]


def _sweep_case(case: Case, repeats: int, rounds: int, dimension: int) -> Iterator[Sweep]:
    theorem, slope = case.theorem, case.rounds_slope
    problem = case.make_problem(dimension)
    lengths = [max(value * rounds // 256, 1) for value in ROUNDS]

    def run(runs: Sequence[DescentRun]) -> FloatArray:
        return run_descent(problem, runs, measure=case.measure, repeats=repeats)

    base = case.make_run(problem, rounds)
    longer = [case.make_run(problem, length) for length in lengths]
    part = "no noise"
    yield Sweep(theorem, part, "T", lengths, run(longer), slope, slope)
    if theorem == "non-convex":
        more = _vary(base, "clients", CLIENTS)
        yield Sweep(theorem, part, "M", CLIENTS, run(more), -0.5, 0.0)
        scaled = [replace(r, step=r.step * math.sqrt(r.clients / CLIENTS[-1])) for r in more]
        yield Sweep(theorem, f"{part}, η ~ √(M/T)", "M", CLIENTS, run(scaled), -0.5, -0.5)
    if theorem == "convex":
        tight = [replace(r, clipping_bound=TIGHT) for r in longer]
        part = f"{part}, nearly all clipped"
        yield Sweep(theorem, part, "T", lengths, run(tight), slope, None)

    def run_noise(runs: Sequence[DescentRun], problem: Problem = problem) -> FloatArray:
        noisy = [replace(r, noise_multiplier=r.noise_multiplier or case.noise) for r in runs]
        return measure_noise_part(problem, noisy, measure=case.measure, repeats=repeats)

    part = "noise part"
    noises = [case.noise * value for value in NOISES]
    table: list[tuple[str, Sequence[float], list[DescentRun], float, float]] = [
        ("z", noises, _vary(base, "noise_multiplier", noises), 1.0, 2.0),
        ("C", BOUNDS, _vary(base, "clipping_bound", BOUNDS), 1.0, 2.0),
        ("B", BATCHES, _vary(base, "batch", BATCHES), -1.0, -2.0),
        ("M", CLIENTS, _vary(base, "clients", CLIENTS), -0.5, -1.0),
        ("T", lengths, longer, 0.0, slope),
    ]
    for setting, values, runs, stated, derived in table:
        yield Sweep(theorem, part, setting, values, run_noise(runs), stated, derived)

    def run_problems(problems: Sequence[Problem]) -> FloatArray:
        return np.stack([run_noise([case.make_run(p, rounds)], p)[0] for p in problems])

    sizes = [max(value * dimension // 16, 1) for value in DIMENSIONS]
    scaled_problems = run_problems([case.make_problem(size) for size in sizes])
    yield Sweep(theorem, part, "d", sizes, scaled_problems, 0.0, 1.0)
    if theorem == "strongly convex":
        curved = [Quadratic(dimension=dimension, strong_convexity=mu) for mu in CURVATURES]
        # A rate in μ is a statement about small μ, so 1/μ is what grows.
        inverses = [1 / mu for mu in CURVATURES]
        yield Sweep(theorem, part, "1/μ", inverses, run_problems(curved), 1.0, 1.0)

    def run_tuned(rounds: int, z: float) -> FloatArray:
        largest = DescentRun(rounds=rounds, noise_multiplier=z, step=case.largest_step)
        return run_with_best_step(problem, largest, measure=case.measure, repeats=repeats)

    part, noises = "whole error, η tuned", list(case.tuned_noises)
    errors = np.stack([run_tuned(rounds, z) for z in noises])
    yield Sweep(theorem, part, "z", noises, errors, 1.0, case.tuned_noise_slope)
    # T releases within one budget need √T times the noise of one.
    single = noises[2] / math.sqrt(rounds)
    errors = np.stack([run_tuned(length, single * math.sqrt(length)) for length in lengths])
    yield Sweep(theorem, f"{part}, one total budget", "T", lengths, errors, 0.5, 0.0)


def _vary(run: DescentRun, name: str, values: Sequence[Any]) -> list[DescentRun]:
    return [replace(run, **{name: value}) for value in values]
