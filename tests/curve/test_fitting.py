"""Families of curves, and the choice among them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.curve import Curve, fit_curve_families
from pacdp.errors import InputError

BUDGETS = np.geomspace(0.01, 10, 8)


@given(scale=st.floats(0.01, 10), exponent=st.floats(0, 1.5))
@settings(deadline=None)
def test_a_power_is_found_exactly(scale, exponent):
    found = fit_curve_families(BUDGETS, scale * BUDGETS**exponent, family="power").curve
    assert found.coefficients == pytest.approx((scale, exponent), rel=1e-6, abs=1e-9)


@given(slopes=st.tuples(st.floats(0.1, 2), st.floats(0.0, 2)), start=st.floats(0.1, 3))
@settings(deadline=None)
def test_a_rising_quadratic_is_found_exactly(slopes, start):
    low, high = BUDGETS[0], BUDGETS[-1]
    bend = (slopes[1] - slopes[0]) / (2 * (high - low))
    bounds = start + slopes[0] * (BUDGETS - low) + bend * (BUDGETS - low) ** 2
    for monotone in (True, False):
        found = fit_curve_families(BUDGETS, bounds, family="quadratic", monotone=monotone).curve
        assert [found(e) for e in BUDGETS] == pytest.approx(bounds, rel=1e-5)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_no_monotone_curve_falls(data):
    bounds = data.draw(st.lists(st.floats(0.05, 20), min_size=8, max_size=8))
    found = fit_curve_families(BUDGETS, bounds)
    for name, fit in found.families.items():
        if fit.coefficients is None:
            continue
        curve = Curve(family=name, coefficients=fit.coefficients, domain=found.curve.domain)
        values = [curve(e) for e in np.geomspace(0.01, 10, 200)]
        assert np.all(np.diff(values) >= -1e-9 * max(values)), name


def test_the_family_that_predicts_best_is_chosen():
    random = np.random.default_rng(0)
    power = 0.7 * BUDGETS**0.4 * np.exp(0.01 * random.normal(size=8))
    assert fit_curve_families(BUDGETS, power).curve.family == "power"
    step = np.where(BUDGETS < 0.3, 0.2, 2.0)
    assert fit_curve_families(BUDGETS, step).curve.family == "piecewise"


def test_left_out_errors_by_hand():
    """A power through three points leaves the fourth where the other three say."""
    bounds = np.array([0.1, 0.2, 0.4, 1.6])
    budgets = np.array([0.01, 0.1, 1.0, 10.0])
    found = fit_curve_families(budgets, bounds).families["power"]
    errors = []
    for number in range(4):
        rest = np.arange(4) != number
        line = np.polyfit(np.log(budgets[rest]), np.log(bounds[rest]), 1)
        errors.append(np.polyval(line, np.log(budgets[number])) - np.log(bounds[number]))
    assert found.left_out == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-9)


def test_the_papers_own_quadratic_is_refused_beyond_its_zero():
    """It falls after ε = 1.09 and is negative above 2.30."""
    budgets = np.array([0.05, 0.1, 0.5, 1.0, 1.5, 2.0, 2.2, 2.29])
    bounds = -5.5235 * budgets**2 + 12.0719 * budgets + 1.4004
    good = fit_curve_families(budgets, bounds, family="quadratic", monotone=False).curve
    assert good.coefficients == pytest.approx((-5.5235, 12.0719, 1.4004), rel=1e-6)
    with pytest.raises(ValueError, match="must be positive and finite"):
        Curve(family="quadratic", coefficients=good.coefficients, domain=(0.05, 5.0))
    even = np.linspace(0.5, 10, 8)
    wrong = np.array([10.0, 2.6, 0.34, 0.05, 0.05, 0.34, 2.6, 10.0])
    refused = fit_curve_families(even, wrong, monotone=False).families["quadratic"]
    assert refused.coefficients is None
    assert "must be positive and finite" in refused.refused
    with pytest.raises(InputError, match="family = quadratic: cannot be used"):
        fit_curve_families(even, wrong, family="quadratic", monotone=False)


def test_an_outlier_is_left_out_and_the_ends_are_not():
    bounds = 0.5 * BUDGETS**0.3
    clean = fit_curve_families(BUDGETS, bounds, family="power")
    assert clean.outliers == ()
    bounds[3] *= 20
    found = fit_curve_families(BUDGETS, bounds, family="power")
    assert found.outliers == (3,)
    assert found.curve.coefficients == pytest.approx((0.5, 0.3), rel=1e-6)


def test_sure_choices_count_more():
    bounds = 0.5 * BUDGETS**0.3
    doubtful = [0, 2, 4, 6]
    bounds[doubtful] *= 1.4
    spreads = np.full(8, 0.01)
    spreads[doubtful] = 1.0
    blind = fit_curve_families(BUDGETS, bounds, family="power").curve
    knowing = fit_curve_families(BUDGETS, bounds, spreads=spreads, family="power").curve
    truth = [0.5, 0.3]
    assert np.abs(np.subtract(knowing.coefficients, truth)).max() < 0.01
    assert np.abs(np.subtract(blind.coefficients, truth)).max() > 0.05


@pytest.mark.parametrize(
    ("budgets", "bounds", "changes", "message"),
    [
        ([1, 2, 3], [1, 2, 3], {}, "at least four"),
        ([1, 3, 2, 4], [1, 2, 3, 4], {}, "rising"),
        ([1, 2, 3, 4], [1, 2, -3, 4], {}, "bounds"),
        ([1, 2, 3, 4], [1, 2, 3, 4], {"family": "cubic"}, "must be one of"),
    ],
)
def test_what_cannot_be_fitted_is_refused(budgets, bounds, changes, message):
    with pytest.raises(InputError, match=message):
        fit_curve_families(budgets, bounds, **changes)
