"""The search is a function of its scores alone."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from pacdp.tuning.coordinate_search import compare_scores, search_coordinates

AXES = {"x": [0, 1, 2, 3], "y": ["a", "b", "c"], "z": [False, True]}
START = {"x": 1, "y": "b", "z": False}
SEEDS = (0, 1, 2)
# Whole numbers, so that no sum is rounded.
tables = st.lists(st.integers(-50, 50), min_size=72, max_size=72)


def scorer(table, calls=None):
    def score(point, seeds):
        place = (AXES["x"].index(point["x"]) * 3 + AXES["y"].index(point["y"])) * 2 + point["z"]
        if calls is not None:
            calls.append(place)
        return [float(table[3 * place + seed]) for seed in seeds]

    return score


@given(tables, st.integers(1, 4))
def test_it_never_ends_worse_than_it_began(table, sweeps):
    score = scorer(table)
    found = search_coordinates(AXES, START, score, seeds=SEEDS, sweeps=sweeps)
    before, after = (statistics.fmean(score(p, SEEDS)) for p in (START, found.point))
    assert after >= before
    assert (after > before) == (found.point != START)


@given(tables, st.integers(1, 4))
def test_no_point_is_trained_twice(table, sweeps):
    calls = []
    found = search_coordinates(AXES, START, scorer(table, calls), seeds=SEEDS, sweeps=sweeps)
    assert len(calls) == len(set(calls))
    assert found.trainings == len(SEEDS) * len(calls)


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=3))
def test_a_flat_score_moves_nothing(by_seed):
    found = search_coordinates(AXES, START, lambda point, seeds: by_seed, seeds=SEEDS, sweeps=3)
    assert found.point == START
    # One sweep in which nothing moved is enough.
    assert [step.setting for step in found.steps] == list(AXES)


@given(tables)
def test_every_move_is_larger_than_its_error(table):
    found = search_coordinates(AXES, START, scorer(table), seeds=SEEDS, sweeps=3)
    for step in found.steps:
        chosen = next(one for one in step.tried if one.value == step.after)
        assert step.after == step.before or chosen.gain > chosen.error


@given(tables)
def test_the_same_scores_give_the_same_search(table):
    first, second = (
        search_coordinates(AXES, START, scorer(table), seeds=SEEDS, sweeps=2) for _ in range(2)
    )
    assert first == second


def test_a_gain_that_one_seed_alone_gives_is_not_believed():
    lucky = {0: [0.0, 0.0, 0.0], 1: [9.0, 0.0, -3.0]}
    found = search_coordinates(
        {"x": [0, 1]}, {"x": 0}, lambda point, seeds: lucky[point["x"]], seeds=SEEDS, sweeps=1
    )
    assert found.point == {"x": 0}


def test_what_is_compared_with_itself_gains_nothing():
    standing = compare_scores({"a": [1.0, 2.0], "b": [2.0, 2.0]}, "a")[0]
    assert (standing.gain, standing.error) == (0.0, 0.0)
