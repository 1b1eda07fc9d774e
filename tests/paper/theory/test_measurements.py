"""Slopes and verdicts, Theorem 5, costs, and the command."""

import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from pacdp.errors import InputError
from pacdp.paper.theory import __main__ as command
from pacdp.paper.theory.approximation import COUNTS, SIGMAS, measure_pipelines, measure_regression
from pacdp.paper.theory.budget import measure_rounds_at_budget
from pacdp.paper.theory.cost import (
    amortise_offline_cost,
    count_client_operations,
    count_offline_operations,
    count_round_bytes,
)
from pacdp.paper.theory.slopes import Slope, assess_slope, fit_slope
from pacdp.paper.theory.surrogate_check import check_surrogate
from pacdp.paper.theory.sweeps import measure_sweeps

counts = st.integers(1, 1000)


@given(slope=st.floats(-3, 3), constant=st.floats(-5, 5))
def test_the_slope_of_a_power_is_its_exponent(slope, constant):
    x = np.array([1.0, 3.0, 10.0, 20.0])
    errors = np.exp(constant) * x[:, None] ** slope * np.ones(5)
    found = fit_slope(x, errors)
    assert found.value == pytest.approx(slope, abs=1e-9)
    assert found.predict(x) == pytest.approx(errors[:, 0])
    assert found.error < 1e-9


def test_the_standard_error_of_a_slope_is_that_of_slopes_measured_again():
    random = np.random.default_rng(0)
    x = np.array([1.0, 2.0, 4.0, 8.0])

    def one():
        return fit_slope(x, x[:, None] * random.lognormal(0, 0.5, size=(4, 60)))

    many = [one() for _ in range(100)]
    measured_again = np.std([found.value for found in many])
    assert np.mean([found.error for found in many]) == pytest.approx(measured_again, rel=0.2)


@given(stated=st.floats(-2, 2), off=st.floats(0.2, 2), error=st.floats(0, 0.01))
def test_a_bound_breaks_where_errors_grow_faster_and_is_loose_where_slower(stated, off, error):
    assert assess_slope(Slope(stated + off, error, 0), stated) == "no"
    assert assess_slope(Slope(stated, error, 0), stated) == "yes"
    assert assess_slope(Slope(stated - off, error, 0), stated) == "loose"


@pytest.mark.parametrize("errors", [[[1.0], [2.0]], [[1.0], [0.0], [2.0]], [1.0, 2.0, 3.0]])
def test_what_has_no_slope_is_refused(errors):
    with pytest.raises(InputError, match="errors: have"):
        fit_slope(np.arange(1, len(errors) + 1), errors)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_least_squares_pays_for_each_of_its_coefficients(degree):
    found = measure_regression(repeats=600, degree=degree)
    # At the largest n, where hardly any of the range lies beyond the outermost budgets.
    noise = found.variance[:, -1].mean(-1) * COUNTS[-1] / np.square(SIGMAS)
    assert noise == pytest.approx(degree + 1, rel=0.15)


def test_the_noise_of_least_squares_falls_with_the_number_of_budgets():
    slope = measure_regression(repeats=600, degree=1).slope
    assert abs(slope.value + 1) < 0.1 + 3 * slope.error


def test_the_misfit_is_what_is_left_without_noise():
    found = measure_regression(repeats=400)
    # Errors are linear in σ² above it: two noise levels give the third.
    squares = np.square(SIGMAS)
    mean = found.errors.mean(-1)
    slope = (mean[-1] - mean[-2]) / (squares[-1] - squares[-2])
    assert mean[-1] - slope * squares[-1] == pytest.approx(found.misfit, rel=0.3)


def test_at_a_smooth_optimum_the_gap_is_quadratic():
    for way in measure_pipelines(repeats=3, counts=(4, 5)):
        assert way.gap_slope == pytest.approx(2, abs=0.25)


@given(n=counts, m=counts, rounds=counts, d=counts, times=st.integers(2, 9))
@settings(max_examples=20)
def test_costs_are_of_the_stated_orders(n, m, rounds, d, times):
    grid = {"budgets": n, "bounds": m, "rounds": rounds, "dimension": d}
    whole = count_offline_operations(**grid)
    for name in grid:
        assert count_offline_operations(**{**grid, name: grid[name] * times}) == times * whole
    assert whole == n * m * rounds * count_client_operations(local_steps=1, dimension=d)
    one = count_round_bytes(clients=n, sampling_rate=0.5, dimension=d)
    assert count_round_bytes(clients=n * times, sampling_rate=0.5, dimension=d) == times * one
    assert amortise_offline_cost(offline=1, online=1, runs=n) == pytest.approx(1 / (1 + n))


def test_costs_of_nothing_are_refused():
    with pytest.raises(InputError, match="dimension = 0"):
        count_client_operations(local_steps=1, dimension=0)
    with pytest.raises(InputError, match="sampling_rate = 2"):
        count_round_bytes(clients=1, sampling_rate=2, dimension=1)


def test_the_command_writes_a_table_and_every_figure(tmp_path, monkeypatch, capsys):
    few = {"budgets": (0.1, 10.0), "bounds": (0.1, 1.0, 10.0), "seeds": 2, "rounds": 3}
    for module, function, size in (
        (command.sweeps, measure_sweeps, {"repeats": 4, "rounds": 32, "dimension": 4}),
        (command.budget, measure_rounds_at_budget, {"repeats": 2, "most": 8}),
        (command.approximation, measure_pipelines, {"repeats": 1, "counts": (4, 5)}),
        (command.surrogate_check, check_surrogate, few),
    ):
        monkeypatch.setattr(module, function.__name__, partial(function, **size))
    # Eighteen panels take long to write, and an example draws them.
    monkeypatch.setattr(command.figures, "draw_sweeps", lambda sweeps: Figure())
    monkeypatch.setattr(sys, "argv", ["theory", "--out", str(tmp_path / "made" / "here")])
    command.main()
    folder = tmp_path / "made" / "here"
    assert capsys.readouterr().out == f"{folder / 'table.md'}\n"
    names = {"rates", "rounds", "approximation", "surrogate"}
    endings = ("png", "svg")
    made = {f"{name}.{ending}" for name in names for ending in endings} | {"table.md"}
    assert {path.name for path in folder.iterdir()} == made
    text = (folder / "table.md").read_text()
    for theorem in ("non-convex", "convex", "strongly convex"):
        assert f"| {theorem} | noise part | z |" in text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["theory", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "must be a folder that can be made" in said
    assert said.count("\n") == 1
