"""What a point of the search means for an experiment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacdp.experiments import read_experiment
from pacdp.methods import METHODS
from pacdp.tuning.search_space import (
    apply_changes,
    apply_point,
    point_to_changes,
    search_axes,
    starting_point,
)

HEART = read_experiment("heart", profile="smoke")
SHIPPED = [name for name, kind in METHODS.items() if kind.__module__.startswith("pacdp.")]


def searched(method, experiment=HEART):
    return search_axes(experiment, method, clients=[200, 173, 31, 86], most=None)


@given(
    st.sampled_from([1, 2, 5, 10, 20, 40]),
    st.sampled_from([0.01, 0.1, 1.0, 10.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.1, 4.64, 1000.0]),
)
def test_the_distance_is_held_whatever_else_changes(rounds, bound, steps, distance):
    point = {
        **starting_point(searched("fixed")),
        "rounds": rounds,
        "bound": bound,
        "local steps": steps,
    }
    made = apply_point(HEART, "fixed", {**point, "distance": distance})
    training, method = made.training, made.build_method("fixed")
    reach = training.optimiser.lr * training.rounds * training.local_steps * method.clipping_bound
    assert reach == pytest.approx(distance, rel=1e-5)


@pytest.mark.parametrize("method", SHIPPED)
def test_every_method_can_be_searched_over_every_value(method):
    found = searched(method)
    for name, values in found.items():
        for value in values:
            apply_point(HEART, method, {**starting_point(found), name: value}).build_method(method)


@pytest.mark.parametrize("method", [name for name in SHIPPED if name not in ("pac-dp", "fedavg")])
def test_rivals_have_the_same_settings_and_values(method):
    ours = searched("pac-dp")
    # λ(t) is PAC-DP's own; all else is searched for everyone.
    assert searched(method) == {name: ours[name] for name in ours if name != "schedule"}


def test_where_nothing_is_clipped_there_is_no_bound():
    assert set(searched("fixed")) - set(searched("fedavg")) == {"bound"}
    assert point_to_changes("fedavg", starting_point(searched("fedavg")))["methods"] == {
        "fedavg": {}
    }


def test_a_curve_is_replaced_as_a_whole():
    other = {
        "family": "power",
        "coefficients": [1.0, 0.3],
        "evidence": {"plan": {"delta": 0.5}},
    }
    experiment = apply_changes(HEART, {"methods": {"pac-dp": {"curve": other}}})
    made = apply_point(experiment, "pac-dp", starting_point(searched("pac-dp")))
    assert set(made.methods["pac-dp"]["curve"]) == {"family", "coefficients"}


def test_settings_that_are_not_searched_stay():
    experiment = apply_changes(HEART, {"methods": {"cgm-median": {"share": 0.3}}})
    made = apply_point(experiment, "cgm-median", starting_point(searched("cgm-median")))
    assert made.methods["cgm-median"]["share"] == 0.3
