"""One grid serves both readings: training sees of a budget nothing but its noise."""

import pytest

from pacdp.experiments import read_experiment
from pacdp.experiments.offline import make_proxy_task
from pacdp.offline import fit_curve
from pacdp.paper.studies.reading import convert_to_per_release
from pacdp.privacy import account, calibrate

ROUNDS = 3


@pytest.fixture(scope="module")
def curve():
    experiment = read_experiment("heart", profile="smoke")
    assert experiment.training.rounds == ROUNDS
    return fit_curve(make_proxy_task(experiment), experiment.offline)


def test_a_budget_of_each_release_asks_for_the_bound_of_the_whole_run_it_comes_to(curve):
    moved = convert_to_per_release(curve, releases=ROUNDS)
    for single, whole in zip(moved.evidence.budgets, curve.evidence.budgets, strict=True):
        release = calibrate(epsilon=single, releases=1).release()
        assert account(release.times(ROUNDS)).epsilon == pytest.approx(whole, rel=1e-6)
        assert moved(single) == pytest.approx(curve(whole), rel=1e-6)


def test_a_grid_trained_at_budgets_of_each_release_has_the_same_scores(curve):
    """What is relabelled is what would have been simulated."""
    moved = convert_to_per_release(curve, releases=ROUNDS)
    budgets = moved.evidence.budgets
    experiment = read_experiment(
        "heart",
        profile="smoke",
        changes=["privacy.scope=per-release", f"offline.budgets={list(budgets)}"],
    )
    again = fit_curve(make_proxy_task(experiment), experiment.offline)
    for mine, theirs in zip(moved.evidence.scores, again.evidence.scores, strict=True):
        for row, other in zip(mine, theirs, strict=True):
            assert row == pytest.approx(other, abs=1e-9)
    assert moved.evidence.plan == again.evidence.plan
