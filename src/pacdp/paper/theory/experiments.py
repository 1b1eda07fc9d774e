"""Theorems 2 to 4, measured: how each error grows with each of its settings.

The noise part of an error is the error with noise minus that without, on the same examples. One
sweep changes one setting and keeps the rest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pacdp.paper.theory.descent import Measured, Run, descend, noise_part, tuned
from pacdp.paper.theory.problems import Logistic, Problem, Quadratic, Wells
from pacdp.paper.theory.rates import Theorem
from pacdp.paper.theory.slopes import Slope, measure, verdict
from pacdp.validation import FloatArray

NOISES = (0.5, 0.7, 1.0, 1.4, 2.0)
BOUNDS = (20.0, 28.0, 40.0, 56.0, 80.0)
BATCHES = (8, 12, 16, 24, 32)
CLIENTS = (2, 4, 8, 16, 32)
ROUNDS = (64, 128, 256, 512, 1024)
DIMENSIONS = (8, 16, 32, 64)
CURVATURES = (0.05, 0.1, 0.2, 0.4)
# A bound that nearly every gradient is longer than.
TIGHT = 0.05


@dataclass(frozen=True, eq=False, kw_only=True)
class Sweep:
    """One statement of a theorem, and what was measured of it."""

    theorem: Theorem
    part: str
    """Of the error: what is swept, and under which step size."""
    setting: str
    """The swept setting, by its letter."""
    values: tuple[float, ...]
    errors: FloatArray
    """(values, repeats)."""
    stated: float
    """The slope that the theorem states."""
    derived: float | None
    """The slope that follows from the descent lemma, where there is one."""

    @cached_property
    def slope(self) -> Slope:
        """As measured."""
        return measure(self.values, self.errors)

    @property
    def holds(self) -> str:
        """Whether the statement is true of what was measured: yes, loose or no."""
        return verdict(self.slope, self.stated)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A theorem, its problem, and how it is trained."""

    theorem: Theorem
    make: Callable[[int], Problem]
    """The problem in d dimensions."""
    measured: Measured
    noise: float
    """Scales noise multipliers: small enough that the model stays where f curves."""
    tuned_noises: tuple[float, ...]
    """For tuned steps: enough that noise decides the step, and little enough to leave the start."""
    run: Callable[[Problem, int], Run]
    """The run of so many rounds, without noise."""
    largest_step: float
    stated_rounds: float
    derived_noise_rounds: float
    derived_tuned_noise: float


def _root_step(scale: float) -> Callable[[Problem, int], Run]:
    """η = scale/√T, as in Theorems 2 and 3."""
    return lambda problem, rounds: Run(rounds=rounds, step=scale / math.sqrt(rounds))


def _falling_step(problem: Problem, rounds: int) -> Run:
    """η_t = 2/(μ·(t + 2L/μ)): the paper's 2/(μ(t+1)), started where it does not exceed 1/L."""
    assert isinstance(problem, Quadratic)
    share = problem.strong_convexity / problem.smoothness
    return Run(rounds=rounds, step=1 / problem.smoothness, decay=share / 2)


CASES = (
    Case(
        theorem="non-convex",
        make=lambda dimension: Wells(dimension=dimension),
        measured="gradient",
        noise=0.1,
        tuned_noises=(0.1, 0.2, 0.4, 0.8),
        run=_root_step(2.0),
        largest_step=0.5,
        stated_rounds=-0.5,
        derived_noise_rounds=-0.5,
        derived_tuned_noise=1.0,
    ),
    Case(
        theorem="convex",
        make=lambda dimension: Logistic(dimension=dimension, decay=0.5),
        measured="average",
        noise=0.03,
        tuned_noises=(0.05, 0.1, 0.2, 0.4, 0.8),
        run=_root_step(12.0),
        largest_step=1.6,
        stated_rounds=-0.5,
        derived_noise_rounds=-0.5,
        derived_tuned_noise=1.0,
    ),
    Case(
        theorem="strongly convex",
        make=lambda dimension: Quadratic(dimension=dimension),
        measured="average",
        noise=1.0,
        tuned_noises=(0.2, 0.4, 0.8, 1.6),
        run=_falling_step,
        largest_step=1.0,
        stated_rounds=-1.0,
        derived_noise_rounds=-1.0,
        derived_tuned_noise=2.0,
    ),
)


def sweeps(*, repeats: int = 64, rounds: int = 256, dimension: int = 16) -> list[Sweep]:
    """Every statement of Theorems 2 to 4 that a slope can tell.

    >>> found = sweeps(repeats=4, rounds=32, dimension=4)
    >>> sorted({sweep.theorem for sweep in found})
    ['convex', 'non-convex', 'strongly convex']
    """
    return [
        sweep
        for case in CASES
        for sweep in (
            *_quiet(case, repeats, rounds, dimension),
            *_noisy(case, repeats, rounds, dimension),
            *_other_problems(case, repeats, rounds, dimension),
            *_tuned(case, repeats, rounds, dimension),
        )
    ]


def _scaled_rounds(rounds: int) -> tuple[int, ...]:
    return tuple(max(value * rounds // 256, 1) for value in ROUNDS)


def _quiet(case: Case, repeats: int, rounds: int, dimension: int) -> Iterator[Sweep]:
    """Without noise: what is left to the number of rounds, and to the number of clients."""
    problem = case.make(dimension)
    lengths = _scaled_rounds(rounds)

    def swept(
        part: str,
        setting: str,
        values: Sequence[float],
        runs: Sequence[Run],
        slopes: tuple[float, float | None],
    ) -> Sweep:
        return Sweep(
            theorem=case.theorem,
            part=part,
            setting=setting,
            values=tuple(values),
            errors=descend(problem, runs, measured=case.measured, repeats=repeats),
            stated=slopes[0],
            derived=slopes[1],
        )

    runs = [case.run(problem, length) for length in lengths]
    stated = case.stated_rounds
    yield swept("no noise", "T", lengths, runs, (stated, stated))
    if case.theorem == "non-convex":
        base = case.run(problem, rounds)
        more = [replace(base, clients=clients) for clients in CLIENTS]
        yield swept("no noise", "M", CLIENTS, more, (-0.5, 0.0))
        root = [replace(run, step=run.step * math.sqrt(run.clients / CLIENTS[-1])) for run in more]
        yield swept("no noise, η ~ √(M/T)", "M", CLIENTS, root, (-0.5, -0.5))
    if case.theorem == "convex":
        tight = [replace(run, clipping_bound=TIGHT) for run in runs]
        yield swept("no noise, nearly all clipped", "T", lengths, tight, (stated, None))


def _noisy(case: Case, repeats: int, rounds: int, dimension: int) -> Iterator[Sweep]:
    """The noise part, over everything that the problem itself does not depend on."""
    problem = case.make(dimension)
    base = replace(case.run(problem, rounds), noise_multiplier=case.noise)
    lengths = _scaled_rounds(rounds)
    noises = [case.noise * value for value in NOISES]
    longer = [replace(case.run(problem, n), noise_multiplier=case.noise) for n in lengths]
    of: list[tuple[str, Sequence[float], list[Run], float, float]] = [
        ("z", noises, [replace(base, noise_multiplier=z) for z in noises], 1.0, 2.0),
        ("C", BOUNDS, [replace(base, clipping_bound=bound) for bound in BOUNDS], 1.0, 2.0),
        ("B", BATCHES, [replace(base, batch=batch) for batch in BATCHES], -1.0, -2.0),
        ("M", CLIENTS, [replace(base, clients=clients) for clients in CLIENTS], -0.5, -1.0),
        ("T", lengths, longer, 0.0, case.derived_noise_rounds),
    ]
    for setting, values, runs, stated, derived in of:
        yield Sweep(
            theorem=case.theorem,
            part="noise part",
            setting=setting,
            values=tuple(values),
            errors=noise_part(problem, runs, measured=case.measured, repeats=repeats),
            stated=stated,
            derived=derived,
        )


def _other_problems(case: Case, repeats: int, rounds: int, dimension: int) -> Iterator[Sweep]:
    """The noise part, over what changes the problem: its dimension and its curvature."""

    def one(problem: Problem) -> FloatArray:
        run = replace(case.run(problem, rounds), noise_multiplier=case.noise)
        return noise_part(problem, [run], measured=case.measured, repeats=repeats)[0]

    sizes = tuple(max(value * dimension // 16, 1) for value in DIMENSIONS)
    yield Sweep(
        theorem=case.theorem,
        part="noise part",
        setting="d",
        values=sizes,
        errors=np.stack([one(case.make(size)) for size in sizes]),
        stated=0.0,
        derived=1.0,
    )
    if case.theorem == "strongly convex":
        curved = [Quadratic(dimension=dimension, strong_convexity=value) for value in CURVATURES]
        yield Sweep(
            theorem=case.theorem,
            part="noise part",
            # A rate in μ is about small ones: it is what happens as 1/μ grows that counts.
            setting="1/μ",
            values=tuple(1 / value for value in CURVATURES),
            errors=np.stack([one(problem) for problem in curved]),
            stated=1.0,
            derived=1.0,
        )


def _tuned(case: Case, repeats: int, rounds: int, dimension: int) -> Iterator[Sweep]:
    """All of the error with the best constant step for each setting."""
    problem = case.make(dimension)
    noises = case.tuned_noises
    lengths = _scaled_rounds(rounds)
    # T releases within one budget need √T times the noise of one.
    whole = noises[2] / math.sqrt(rounds)
    of: list[tuple[str, str, Sequence[float], list[tuple[int, float]], float, float]] = [
        ("", "z", noises, [(rounds, z) for z in noises], 1.0, case.derived_tuned_noise),
        (
            *(", one total budget", "T", lengths),
            *([(n, whole * math.sqrt(n)) for n in lengths], 0.5, 0.0),
        ),
    ]
    for under, setting, values, pairs, stated, derived in of:
        runs = [Run(rounds=n, noise_multiplier=z, step=case.largest_step) for n, z in pairs]
        errors = [tuned(problem, r, measured=case.measured, repeats=repeats) for r in runs]
        yield Sweep(
            theorem=case.theorem,
            part=f"whole error, η tuned{under}",
            setting=setting,
            values=tuple(values),
            errors=np.stack(errors),
            stated=stated,
            derived=derived,
        )
