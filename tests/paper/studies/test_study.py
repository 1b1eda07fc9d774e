"""Studies as files: every size of each can be read, and rows mean what they say."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacdp.curve import Curve, CurveEvidence
from pacdp.errors import DataError, InputError
from pacdp.experiments import RunResult, prepare_run, read_experiment
from pacdp.experiments.execute import simulate_run
from pacdp.methods import METHODS
from pacdp.paper.studies.jobs import (
    StudyRun,
    budget_shares,
    build_job,
    list_runs,
    select_fixed_bound,
)
from pacdp.paper.studies.study import (
    PROFILES,
    READINGS,
    list_studies,
    load_study_experiment,
    read_study,
)
from pacdp.paper.studies.summary import AccuracyGain, ArmResult, collect_results

F = Curve(family="power", coefficients=(1.0, 0.4), domain=(0.001, 100.0))


def scored(scores, budgets=(0.1, 1.0), bounds=(0.1, 1.0, 10.0)):
    evidence = CurveEvidence(scores=[scores], budgets=budgets, bounds=bounds)
    return F.model_copy(update={"evidence": evidence})


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", list_studies())
def test_every_size_of_every_study_can_be_made(name, profile):
    study = read_study(name, profile=profile)
    assert study.name == name
    for cell in list_runs(study) if study.kind == "comparison" else ():
        made = build_job(
            study, cell, profile=profile, fit=lambda experiment: scored([[1, 2, 3]] * 2)
        )
        assert made.method.name in METHODS
    for experiment in study.experiments:
        assert load_study_experiment(experiment, study.changes, profile=profile).name == experiment


def test_what_the_paper_shows_is_there():
    desk = {name: read_study(name, profile="desk") for name in list_studies()}
    assert all(study.seeds >= 3 for study in desk.values())
    for name in ("mnist", "cifar10", "cifar100", "heart", "heart-dnn"):
        study = read_study(name, profile="full")
        assert study.epsilons == (0.05, 0.1, 0.5, 1, 5)
        fixed = {study.arm(arm).settings.get("clipping_bound") for arm in study.arms}
        assert fixed >= {0.1, 1, 5, 10, "proxy"}
        rivals = {study.arm(arm).method for arm in study.arms}
        assert rivals >= {"rpdp-fl", "nbafl", "cgm-median", "aqc", "fedavg"}
    # The paper's one table.
    table = desk["mnist-personalised"].paper.rounds
    assert table["pac-dp"] == {5: 0.845, 10: 0.880, 15: 0.903, 20: 0.898, 25: 0.902}
    assert desk["mnist-personalised"].rounds == (5, 10, 15, 20, 25)
    assert (
        load_study_experiment(
            "mnist", desk["mnist-personalised"].changes, profile="desk"
        ).training.rounds
        == 25
    )


def test_every_row_stands_twice():
    study = read_study("heart", profile="smoke")
    for arm in study.arms:
        assert {c.reading for c in list_runs(study) if c.arm == arm} == set(READINGS)


def test_readings_differ_in_what_a_budget_covers_and_in_nothing_else():
    study = read_study("heart", profile="smoke")

    def made(arm, reading):
        return build_job(study, StudyRun(arm, reading, None, 0), profile="smoke", fit=lambda e: F)

    published, certified = (made("pac-dp", reading).experiment for reading in READINGS)
    assert (published.privacy.scope, certified.privacy.scope) == ("per-release", "total")
    # The published formula, where it is proved.
    assert published.privacy.accountant == "basic"
    same = published.privacy.model_copy(update={"scope": "total", "accountant": None})
    assert published.model_copy(update={"privacy": same}) == certified
    assert made("nbafl", "as-published").method.name == "nbafl-original"
    # Those that account for a whole run themselves, or have no ε, are run once.
    for arm in ("rpdp-fl", "fedavg"):
        assert made(arm, "as-published").key == made(arm, "certified").key


def test_a_run_is_known_by_all_that_decides_it():
    study = read_study("heart", profile="smoke")
    cell = StudyRun("pac-dp", "certified", None, 0)
    first = build_job(study, cell, profile="smoke", fit=lambda e: F)
    again = build_job(study, cell, profile="smoke", fit=lambda e: F)
    assert first.key == again.key
    steeper = F.model_copy(update={"coefficients": (1.0, 0.5)})
    others = [
        build_job(
            study, StudyRun("pac-dp", "certified", None, 1), profile="smoke", fit=lambda e: F
        ),
        build_job(study, StudyRun("pac-dp", "certified", 0.5, 0), profile="smoke", fit=lambda e: F),
        build_job(study, cell, profile="smoke", fit=lambda e: steeper),
        build_job(study, cell, profile="desk", fit=lambda e: F),
    ]
    assert len({first.key, *(other.key for other in others)}) == 5


def test_a_fixed_bound_gets_the_same_tuning():
    curve = scored([[0.9, 0.5, 0.1], [0.2, 0.5, 0.9]])
    assert select_fixed_bound(curve, {0.1: 1.0}) == 0.1
    assert select_fixed_bound(curve, {1.0: 1.0}) == 10.0
    assert select_fixed_bound(curve, {0.1: 0.3, 1.0: 0.7}) == 10.0
    # Between two budgets their scores are mixed.
    assert select_fixed_bound(curve, {10**-0.6: 1.0}) == 0.1


@given(st.lists(st.sampled_from([0.1, 0.5, 2.0]), min_size=1, max_size=9))
def test_shares_of_budgets_add_up(budgets):
    shares = budget_shares(tuple(budgets))
    assert set(shares) == set(budgets)
    assert sum(shares.values()) == pytest.approx(1)


def run_result(seed=0, *, changes=()):
    experiment = read_experiment("heart", profile="smoke", changes=list(changes))
    ready = prepare_run(experiment, seed=seed)
    return RunResult.of(ready, simulate_run(ready))


def test_a_result_comes_back_as_it_was(tmp_path):
    made = run_result()
    made.save_file(tmp_path / "one.json")
    back = RunResult.load_file(tmp_path / "one.json")
    assert (back.plan, back.history, back.clients) == (made.plan, made.history, made.clients)
    assert back == made
    assert back.to_json() == made.to_json()
    assert back != made.model_copy(update={"seed": 1})


ROUND = {
    **{"round": 1, "asked": 4, "answered": 4, "epsilon_spent": None},
    **{"adjacency": "zero-out", "seconds": 0.1},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plan": None}, "is no result of a run"),
        ({"rows": [1]}, "a round is no object"),
        ({"rows": [ROUND | {"accuracy": "abc"}]}, "accuracy = 'abc': input should be a valid num"),
        ({"rows": [ROUND | {"loss": None}]}, "loss: input should be a valid number"),
        ({"rows": [{"round": 1}]}, "is missing"),
        ({"result": []}, "the result is no object"),
        ({"result": {"experiment": "heart"}}, "result.method: is missing; was it made by another"),
        ({"result": {"experiment": 3}}, "result.experiment = 3: input should be a valid string"),
    ],
)
def test_a_damaged_result_is_refused(tmp_path, change, said):
    path = tmp_path / "one.json"
    run_result().save_file(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=said):
        RunResult.load_file(path)


def test_rows_count_rounds_to_a_target_and_say_where_it_is_not_reached():
    row = ArmResult("pac-dp", "certified", [run_result(seed) for seed in range(2)])
    seen = [row.over_rounds(run) for run in row.runs]
    assert row.rounds_to(0.0) == [1, 1]
    assert row.rounds_to(1.01) == [None, None]
    best = max(seen[0].values())
    first = min(number for number, value in seen[0].items() if value == best)
    assert row.rounds_to(best)[0] == first
    assert row.after(3).mean == pytest.approx(np.mean([one[3] for one in seen]))
    assert row.after(99) is None


def test_gains_are_taken_seed_by_seed():
    study = read_study("heart", profile="smoke").model_copy(update={"arms": ("pac-dp", "aqc")})
    runs = {
        StudyRun(arm, reading, None, seed): run_result(seed)
        for arm in study.arms
        for reading in READINGS
        for seed in range(2)
    }
    from pacdp.paper.studies.summary import compute_gains

    study = study.model_copy(update={"epsilons": ()})
    (gain,) = compute_gains(collect_results(study, runs, profile="smoke", data="heart"))
    assert (gain.other, gain.points, gain.standard_error) == ("aqc", 0, 0)


@pytest.mark.parametrize(
    ("points", "error", "seeds", "verdict"),
    [
        (3.0, 1.0, 5, "wins"),
        (-3.0, 1.0, 5, "loses"),
        (3.0, 1.6, 5, "no significant difference"),
        (4.2, 1.0, 3, "no significant difference"),
        (4.4, 1.0, 3, "wins"),
        (3.0, 0.0, 1, "no significant difference"),
    ],
)
def test_a_win_holds_at_95_percent_for_so_many_seeds(points, error, seeds, verdict):
    assert AccuracyGain("fixed", points, error, seeds).verdict == verdict


def test_unknown_studies_and_sizes_are_refused():
    with pytest.raises(InputError, match="did you mean heart"):
        read_study("hart", profile="smoke")
    with pytest.raises(InputError, match="smoke, desk, full"):
        read_study("heart", profile="large")
