"""Thresholds, schedules and curves: functions of the budget and the round alone."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pacdp.curve import Curve
from pacdp.errors import DataError, InputError
from pacdp.methods import METHODS, build_method
from pacdp.schedule import Schedule

POWER = {"family": "power", "coefficients": [0.5, 0.25]}


@given(rounds=st.integers(1, 300), hold_fraction=st.floats(0, 1), min_factor=st.floats(0.01, 1))
def test_the_schedule_stays_and_then_falls(rounds, hold_fraction, min_factor):
    schedule = Schedule(hold_fraction=hold_fraction, min_factor=min_factor)
    factors = [schedule.factor(t, rounds=rounds) for t in range(rounds)]
    start = math.floor(hold_fraction * rounds)
    assert factors[:start] == [1.0] * start
    assert all(a >= b for a, b in pairwise(factors))
    assert min_factor < factors[-1] <= 1 or factors[-1] == pytest.approx(min_factor)


def test_the_schedule_by_hand():
    schedule = Schedule()
    assert schedule.factor(24, rounds=25) == pytest.approx(
        0.1 + 0.9 * (1 + math.cos(math.pi * 9 / 10)) / 2
    )
    with pytest.raises(InputError, match="round = 25: must be from 0 to 24"):
        schedule.factor(25, rounds=25)
    with pytest.raises(ValidationError):
        Schedule(min_factor=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": {"least": 0.1}}, r"schedule\.least: is no setting; .*min_factor"),
        ({"schedule": {"stable": 0.6}}, r"schedule\.stable: is no setting; .*hold_fraction"),
        ({"any_plan": True}, r"any_plan: is no setting; .*allow_plan_mismatch"),
    ],
)
def test_settings_of_earlier_versions_are_refused_in_one_line(settings, message):
    with pytest.raises(InputError, match=message) as refused:
        build_method("pac-dp", {"curve": POWER, **settings})
    assert "\n" not in str(refused.value)


def test_the_papers_curves():
    mnist = Curve(family="quadratic", coefficients=(-5.5235, 12.0719, 1.4004), domain=(0.05, 1.0))
    assert mnist(0.1) == pytest.approx(2.552355, abs=1e-6)
    assert mnist(5.0) == mnist(1.0)
    with pytest.raises(ValidationError, match=r"must be positive and finite on \[0.05, 3.0\]"):
        Curve(family="quadratic", coefficients=(-5.5235, 12.0719, 1.4004), domain=(0.05, 3.0))


def test_piecewise_goes_through_its_knots():
    curve = Curve(family="piecewise", coefficients=(0.01, 0.1, 0.1, 0.5, 1.0, 1.5))
    assert [curve(e) for e in (0.01, 0.1, 1.0)] == pytest.approx([0.1, 0.5, 1.5])
    values = [curve(0.01 * 10 ** (n / 20)) for n in range(41)]
    assert values == sorted(values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"family": "power", "coefficients": [1.0]},
        {"family": "power", "coefficients": [-1.0, 0.5]},
        {"family": "piecewise", "coefficients": [0.1, 1.0, 0.05, 2.0]},
        {"family": "power", "coefficients": [1.0, 0.5], "domain": [1.0, 0.5]},
        {"family": "cubic", "coefficients": [1.0]},
    ],
)
def test_curves_that_cannot_be(wrong):
    with pytest.raises(ValidationError):
        Curve(**wrong)


def test_curve_files_are_checked(tmp_path):
    path = tmp_path / "curve.json"
    Curve(**POWER).save(path)
    assert Curve.load(path) == Curve(**POWER)
    content = json.loads(path.read_text())
    content["coefficients"][0] = 0.6
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged, its checksum"):
        Curve.load(path)
    path.write_text("{")
    with pytest.raises(DataError, match="is no curve"):
        Curve.load(path)


def test_pac_dp_takes_a_file_or_a_function(tmp_path):
    Curve(**POWER).save(tmp_path / "curve.json")
    made = build_method("pac-dp", {"curve": str(tmp_path / "curve.json")})
    assert made == build_method("pac-dp", {"curve": POWER})
    assert made.bound(0.1, round=0, rounds=10) == pytest.approx(0.5 * 0.1**0.25)
    free = build_method("pac-dp", {"curve": POWER, "schedule": {"kind": "none"}})
    assert free.bound(0.1, round=9, rounds=10) == free.bound(0.1, round=0, rounds=10)


def test_thresholds_know_nothing_but_budget_and_round():
    """The signature is the guarantee: there is nothing private to depend on."""
    import inspect

    for kind in METHODS.values():
        assert set(inspect.signature(kind.bound).parameters) == {
            *("self", "epsilon", "round", "rounds"),
        }


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pacdp", {}, "did you mean pac-dp"),
        ("fixed", {"clip": 1.0}, "methods.fixed.clip: is no setting"),
        ("fixed", {"clipping_bnd": 1.0}, "did you mean clipping_bound"),
        (
            "fixed",
            {"clipping_bound": -1.0},
            "clipping_bound = -1.0: .*greater than 0",
        ),
        ("fixed", {"clipping_bound": float("inf")}, "finite number"),
        ("pac-dp", {}, "methods.pac-dp.curve: is missing"),
        ("pac-dp", {"curve": {**POWER, "colour": 1}}, "methods.pac-dp.curve.colour"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(InputError, match=message):
        build_method(name, settings)
