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


@dataclass(frozen=True, eq=False, kw_only=True)
class Sweep:
    """A statement of a theorem and its measurement."""

    theorem: Theorem
    part: str
    """The measured part of the error, and the choice of the step size."""
    setting: str
    """Symbol of the varied setting."""
    values: tuple[float, ...]
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
    measure: ErrorMeasure
    noise: float
    """Scale of the noise multipliers: small enough that the model stays near the optimum."""
    tuned_noises: tuple[float, ...]
    """For tuned steps: enough noise to determine the step, and little enough to make progress."""
    make_run: Callable[[Problem, int], DescentRun]
    """The run with so many rounds, without noise."""
    largest_step: float
    rounds_slope: float
    """Stated slope of the error without noise, and derived slope of the noise part, over T."""
    tuned_noise_slope: float
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
        rounds_slope=-0.5,
        tuned_noise_slope=1.0,
    ),
    Case(
        theorem="convex",
        make_problem=lambda dimension: Logistic(dimension=dimension, decay=0.5),
        measure="average",
        noise=0.03,
        tuned_noises=(0.05, 0.1, 0.2, 0.4, 0.8),
        make_run=_root_step(12.0),
        largest_step=1.6,
        rounds_slope=-0.5,
        tuned_noise_slope=1.0,
    ),
    Case(
        theorem="strongly convex",
        make_problem=lambda dimension: Quadratic(dimension=dimension),
        measure="average",
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
    studies = [_CaseStudy(case, repeats, rounds, dimension) for case in CASES]
    return [
        sweep
        for study in studies
        for sweep in (*study.sweep_noiseless(), *study.sweep_noise_part(), *study.sweep_tuned())
    ]


class _CaseStudy:
    """The sweeps of one case."""

    def __init__(self, case: Case, repeats: int, rounds: int, dimension: int) -> None:
        self.case, self.repeats, self.rounds, self.dimension = case, repeats, rounds, dimension
        self.problem = case.make_problem(dimension)
        self.lengths = tuple(max(value * rounds // 256, 1) for value in ROUNDS)

    def sweep_noiseless(self) -> Iterator[Sweep]:
        """Sweep the error without noise, over rounds and clients."""
        case, slope = self.case, self.case.rounds_slope

        def run(runs: Sequence[DescentRun]) -> FloatArray:
            return run_descent(self.problem, runs, measure=case.measure, repeats=self.repeats)

        runs = [case.make_run(self.problem, length) for length in self.lengths]
        yield self._sweep("no noise", "T", self.lengths, run(runs), slope, slope)
        if case.theorem == "non-convex":
            more = _vary(case.make_run(self.problem, self.rounds), "clients", CLIENTS)
            yield self._sweep("no noise", "M", CLIENTS, run(more), -0.5, 0.0)
            scaled = [replace(r, step=r.step * math.sqrt(r.clients / CLIENTS[-1])) for r in more]
            yield self._sweep("no noise, η ~ √(M/T)", "M", CLIENTS, run(scaled), -0.5, -0.5)
        if case.theorem == "convex":
            tight = [replace(run, clipping_bound=TIGHT) for run in runs]
            part = "no noise, nearly all clipped"
            yield self._sweep(part, "T", self.lengths, run(tight), slope, None)

    def sweep_noise_part(self) -> Iterator[Sweep]:
        """Sweep the error that noise adds, over the settings of the training and the problem."""
        case, part = self.case, "noise part"

        def run(problem: Problem, runs: Sequence[DescentRun]) -> FloatArray:
            return measure_noise_part(problem, runs, measure=case.measure, repeats=self.repeats)

        def make_run(problem: Problem, rounds: int) -> DescentRun:
            return replace(case.make_run(problem, rounds), noise_multiplier=case.noise)

        base = make_run(self.problem, self.rounds)
        noises = [case.noise * value for value in NOISES]
        longer = [make_run(self.problem, length) for length in self.lengths]
        table: list[tuple[str, Sequence[float], list[DescentRun], float, float]] = [
            ("z", noises, _vary(base, "noise_multiplier", noises), 1.0, 2.0),
            ("C", BOUNDS, _vary(base, "clipping_bound", BOUNDS), 1.0, 2.0),
            ("B", BATCHES, _vary(base, "batch", BATCHES), -1.0, -2.0),
            ("M", CLIENTS, _vary(base, "clients", CLIENTS), -0.5, -1.0),
            ("T", self.lengths, longer, 0.0, case.rounds_slope),
        ]
        for setting, values, runs, stated, derived in table:
            yield self._sweep(part, setting, values, run(self.problem, runs), stated, derived)

        def run_each(problems: Sequence[Problem]) -> FloatArray:
            return np.stack([run(p, [make_run(p, self.rounds)])[0] for p in problems])

        sizes = [max(value * self.dimension // 16, 1) for value in DIMENSIONS]
        errors = run_each([case.make_problem(size) for size in sizes])
        yield self._sweep(part, "d", sizes, errors, 0.0, 1.0)
        if case.theorem == "strongly convex":
            curved = [Quadratic(dimension=self.dimension, strong_convexity=c) for c in CURVATURES]
            # A rate in μ is a statement about small μ, so 1/μ is what grows.
            inverses = [1 / value for value in CURVATURES]
            yield self._sweep(part, "1/μ", inverses, run_each(curved), 1.0, 1.0)

    def sweep_tuned(self) -> Iterator[Sweep]:
        """Sweep the whole error with the best constant step for each value."""
        case, noises = self.case, self.case.tuned_noises
        # T releases within one budget need √T times the noise of one.
        single = noises[2] / math.sqrt(self.rounds)

        def run(rounds: int, z: float) -> FloatArray:
            longest = DescentRun(rounds=rounds, noise_multiplier=z, step=case.largest_step)
            return run_with_best_step(
                self.problem, longest, measure=case.measure, repeats=self.repeats
            )

        part = "whole error, η tuned"
        errors = np.stack([run(self.rounds, z) for z in noises])
        yield self._sweep(part, "z", noises, errors, 1.0, case.tuned_noise_slope)
        errors = np.stack([run(rounds, single * math.sqrt(rounds)) for rounds in self.lengths])
        yield self._sweep(f"{part}, one total budget", "T", self.lengths, errors, 0.5, 0.0)

    def _sweep(
        self,
        part: str,
        setting: str,
        values: Sequence[float],
        errors: FloatArray,
        stated: float,
        derived: float | None,
    ) -> Sweep:
        return Sweep(
            theorem=self.case.theorem,
            part=part,
            setting=setting,
            values=tuple(values),
            errors=errors,
            stated=stated,
            derived=derived,
        )


def _vary(run: DescentRun, name: str, values: Sequence[Any]) -> list[DescentRun]:
    return [replace(run, **{name: value}) for value in values]
