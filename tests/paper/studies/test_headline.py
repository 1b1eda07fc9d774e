"""The headline, the weights and the ablation: what their tables say is what was run."""

import csv

import pytest

from pacdp.experiments import RunResult
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.headline import build_headline, replace_one_epsilons
from pacdp.paper.studies.reproduce import list_work
from pacdp.paper.studies.section import StepCounter
from pacdp.paper.studies.study import read_study
from pacdp.privacy import calibrate
from pacdp.tuning import TunedConfiguration


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    study = read_study("headline", profile="smoke")
    # Heart alone: the other line is in the whole smoke run.
    study = study.model_copy(update={"entries": study.entries[-1:]})
    store = ArtifactStore(tmp_path_factory.mktemp("headline") / "out", profile="smoke")
    counter = StepCounter()
    section = build_headline(
        study, "smoke", [item.run(store, counter) for item in list_work(study)]
    )
    return study, store, section, counter.done


def results(store):
    return [RunResult.load_file(path) for path in sorted((store.folder / "runs").iterdir())]


def test_every_run_is_certified_within_its_budget(made):
    private = [one for one in results(made[1]) if one.plan.method != "fedavg"]
    assert private
    for one in private:
        for client in one.clients:
            assert client.epsilon_spent <= client.epsilon_budget * (1 + 1e-9)
        assert one.plan.tuning["method"] == one.plan.method
        assert one.plan.tuning["expected"]["seeds"]


def test_runs_split_off_test_records_that_no_search_and_no_other_run_has_seen(made):
    study, _, part, _ = made
    rows = list(csv.DictReader(part.csv.splitlines()))
    seeds = {
        kind: {int(row["seed"]) for row in rows if row["runs"] == kind}
        for kind in ("pac-dp", "fixed", "fresh")
    }
    searched = range(2 * study.entries[0].search)
    assert seeds["pac-dp"] == seeds["fixed"]
    assert not seeds["fresh"] & seeds["pac-dp"]
    assert not (seeds["fresh"] | seeds["pac-dp"]) & set(searched)


def test_the_plan_is_frozen_and_rivals_had_the_same_search(made):
    _, store, _, _ = made
    plans = {
        one.method: one for one in map(TunedConfiguration.load, (store.folder / "plans").iterdir())
    }
    assert set(plans) == {"pac-dp", "fixed", "fedavg"}
    searched = [
        {step["setting"] for step in plans[name].why} - {"schedule"} for name in ("pac-dp", "fixed")
    ]
    assert searched[0] == searched[1]
    runs = [one for one in results(store) if one.plan.method == "pac-dp"]
    # The same plan whatever the split: what was chosen cannot depend on it.
    assert len({one.plan.training.model_dump_json() for one in runs}) == 1
    assert len({str(one.plan.settings) for one in runs}) == 1


def test_replace_one_is_what_the_same_noise_certifies_there(made):
    one = next(one for one in results(made[1]) if one.plan.method == "pac-dp")
    (epsilon,) = replace_one_epsilons(one)
    task = one.plan.clients[0]
    noise = calibrate(
        epsilon=epsilon,
        delta=one.plan.privacy.delta,
        releases=task.releases,
        adjacency="replace-one",
    ).noise_multiplier
    assert float(noise) == pytest.approx(task.noise_multiplier, rel=1e-6)
    assert epsilon > 2 * task.budget


def test_tracks_stand_in_tables_of_their_own(made):
    text = made[2].text
    assert "### Track private-only" in text
    assert "### Track public" not in text
    for entry in read_study("headline", profile="desk").entries:
        shown = entry.changes.get("representation", {})
        public = "public" in shown or "hot_start" in entry.changes
        assert entry.track == ("public" if public else "private-only")


def test_whoever_waits_is_told_how_much_there_is(made):
    assert made[3] == sum(one.steps for one in list_work(made[0]))
