"""A real search, on few values: what it looks at, what it counts, and what it hands on."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from pacdp.data import load_dataset
from pacdp.data.proxy import Proxy
from pacdp.errors import DataError, InputError
from pacdp.experiments import Experiment, prepare_run, read_experiment
from pacdp.experiments import offline as rehearsing
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.prepare import read_data
from pacdp.features import PUBLIC_DATA, PublicData, fit_features, load_public_data
from pacdp.tuning import (
    TunedConfiguration,
    apply_configuration,
    evaluation,
    find_contradiction,
    tune,
)
from pacdp.tuning.evaluation import CandidateEvaluator

# The package has a function of that name.
module = sys.modules["pacdp.tuning.tuner"]
HEART = read_experiment("heart", profile="smoke", curves=False)
OWN = read_experiment("heart-personalised", profile="smoke", curves=False)


WHOLE = module.search_axes


def few(*given, **named):
    """Two values of each setting, and not the most rounds: a real search, in a second."""
    axes = {name: values[-2:] for name, values in WHOLE(*given, **named).items()}
    return axes | {"rounds": [5, 10]}


@pytest.fixture(autouse=True)
def few_values(monkeypatch):
    monkeypatch.setattr(module, "search_axes", few)


def count_calls(patch):
    """Count the trainings from here on."""
    calls = []
    whole = evaluation.score_plans

    def score_plans(plans, records, **more):
        calls.append(plans[0].method)
        return whole(plans, records, **more)

    patch.setattr(evaluation, "score_plans", score_plans)
    return calls


@pytest.fixture(scope="module")
def alone():
    """Two methods that were tuned by themselves, and how many trainings both took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "search_axes", few)
        calls = count_calls(patch)
        names = ("pac-dp", "fixed")
        tuned = {name: tune(OWN, method=name, seeds=2, sweeps=1) for name in names}
        return tuned, len(calls)


@pytest.fixture(scope="module")
def found(alone):
    return alone[0]["pac-dp"]


def test_private_records_are_not_looked_at():
    dataset, split = read_data(HEART.data, seed=0)
    random = np.random.default_rng(1)

    def others(records):
        return replace(
            records,
            features=random.uniform(-1, 1, records.features.shape).astype(records.features.dtype),
            labels=random.permutation(1 - records.labels),
        )

    changed = replace(dataset, train=others(dataset.train), test=others(dataset.test))
    first, second = (
        tune(HEART, method="fixed", seeds=2, sweeps=1, evaluator=CandidateEvaluator((one, split)))
        for one in (dataset, changed)
    )
    assert first == second


def test_what_is_expected_is_measured_on_fresh_seeds(monkeypatch):
    seen = []
    whole = CandidateEvaluator.scores

    def scores(self, experiment, method, seeds, **more):
        seen.append(tuple(seeds))
        return whole(self, experiment, method, seeds, **more)

    monkeypatch.setattr(CandidateEvaluator, "scores", scores)
    found = tune(HEART, method="fixed", seeds=2, sweeps=1)
    assert set(seen[:-1]) == {(0, 1)}
    assert seen[-1] == (2, 3) == tuple(found.expected.seeds)
    assert found.trainings == sum(map(len, seen))


def test_progress_never_goes_back_and_ends_at_what_was_trained():
    told = []
    found = tune(HEART, seeds=1, sweeps=1, progress=lambda *report: told.append(report[:3]))
    done = [one[1] for one in told]
    assert done == sorted(done)
    assert all(now < total for _, now, total in told[:-1])
    assert told[-1] == (f"tuning {HEART.name}", found.trainings, found.trainings)


def test_unequal_budgets_choose_weights_that_are_safe(found):
    uneven, alike = found.why[-2:]
    assert (uneven["setting"], alike["setting"]) == ("weights, labels uneven", "weights")
    safe = {one["value"] for one in uneven["tried"] if one["gain"] >= -one["error"]}
    best = max((one for one in alike["tried"] if one["value"] in safe), key=lambda o: o["mean"])
    # What cannot be told from noise stays as it was, unless that is not safe.
    before = alike["before"]
    stays = before if before in safe else "size"
    moved = best["gain"] > best["error"]
    assert found.chosen["weights"] == alike["after"] == (best["value"] if moved else stays)
    assert before == OWN.server.weights
    assert found.privacy.budgets == (0.01, 0.05, 0.5)


@pytest.mark.parametrize(
    ("best", "uneven", "taken"),
    [
        ("inverse-variance", 0.9, "inverse-variance"),
        ("inverse-variance", 0.1, "inverse-noise"),
        ("inverse-noise", 0.1, "size"),
    ],
)
def test_a_rule_that_loses_where_labels_are_uneven_is_not_taken(best, uneven, taken, monkeypatch):
    def scores(self, experiment, method, seeds, *, skew=None):
        good = experiment.server.weights == best
        return [(uneven if skew else 0.9) if good else 0.5] * len(seeds)

    monkeypatch.setattr(CandidateEvaluator, "scores", scores)
    assert OWN.server.weights == "inverse-noise"
    assert tune(OWN, method="fixed", seeds=2, sweeps=1).chosen["weights"] == taken


def clouds(*, records, clients):
    """Like clients with equal budgets."""
    options = {"records": records}
    data = {"name": "synthetic", "options": options, "partition": "iid", "clients": clients}
    training = {"rounds": 2, "local_steps": 1}
    return Experiment.model_validate({"name": "clouds", "data": data, "training": training})


def test_equal_budgets_and_sizes_leave_weights_alone():
    alike = clouds(records=400, clients=4)
    found = tune(alike, method="fixed", seeds=1, sweeps=1)
    assert found.chosen["weights"] == alike.server.weights
    assert not [step for step in found.why if "weights" in step["setting"]]


def test_the_experiments_own_rule_is_among_those_tried():
    epsilon = OWN.model_copy(
        update={"server": OWN.server.model_copy(update={"weights": "epsilon"})}
    )
    found = tune(epsilon, method="fixed", seeds=1, sweeps=1)
    weights = next(step for step in found.why if step["setting"] == "weights")
    assert "epsilon" in {one["value"] for one in weights["tried"]}


def test_rivals_get_the_same_effort():
    ours, theirs = (tune(HEART, method=name, seeds=2, sweeps=1) for name in ("pac-dp", "dp-fedavg"))
    tried = [
        # The first look at each setting; what comes after is finer, for F as for a rival's bound.
        {s["setting"]: [t["value"] for t in s["tried"]] for s in reversed(one.why)}
        for one in (ours, theirs)
    ]
    assert tried[0].pop("schedule")
    assert tried[0] == tried[1]
    assert ours.expected.seeds == theirs.expected.seeds


def test_it_reads_back_as_it_was(found, tmp_path):
    found.save(tmp_path / "tuned.json")
    again = TunedConfiguration.load(tmp_path / "tuned.json")
    assert again == found
    assert apply_configuration(OWN, again) == apply_configuration(OWN, found)


def test_a_run_takes_the_plan_and_its_curve(found):
    experiment = apply_configuration(OWN, found)
    # A curve for another plan would be refused here.
    prepared = prepare_run(experiment)
    plan = prepared.plan
    assert plan.settings["curve"]["evidence"]["plan"]["training"] == plan.terms["training"]
    assert plan.tuning == found.summary
    assert (plan.rounds, plan.server.weights) == (found.chosen["rounds"], found.chosen["weights"])
    assert simulate_run(prepared).metrics["accuracy"] > 0


def test_a_schedule_of_ones_own_is_that_of_the_curve():
    own = {"pac-dp": {"schedule": {"kind": "cosine", "hold_fraction": 0.2, "min_factor": 0.5}}}
    experiment = Experiment.model_validate({**HEART.model_dump(exclude_unset=True), "methods": own})
    made = apply_configuration(experiment, tune(experiment, seeds=1, sweeps=1))
    assert prepare_run(made).plan.settings["schedule"]["hold_fraction"] == 0.2


def test_what_it_is_not_for_is_refused(found, tmp_path):
    with pytest.raises(InputError, match=r"was made for heart-personalised, must be for heart"):
        apply_configuration(HEART, found)
    with pytest.raises(InputError, match=r"seeds = 0"):
        tune(HEART, seeds=0)
    with pytest.raises(InputError, match=r"did you mean fixed"):
        tune(HEART, method="fixd")
    wrong = found.model_copy(update={"changes": {"training": {"rounds": -1}}})
    with pytest.raises(DataError, match=r"training\.rounds = -1"):
        apply_configuration(OWN, wrong)
    (tmp_path / "cut.json").write_text(found.model_dump_json()[:-40])
    with pytest.raises(DataError, match=r"is no plan of pacdp tune"):
        TunedConfiguration.load(tmp_path / "cut.json")
    assert find_contradiction(found, ["training={rounds=3, cap=0.9}"]) is not None
    assert find_contradiction(found, ["privacy.epsilon=3.0", "training.cap=0.9"]) is None


@pytest.fixture
def small_pool(monkeypatch, tmp_path):
    """Public strokes in three parts, and none of them twice."""
    monkeypatch.setenv("PACDP_CACHE_DIR", str(tmp_path / "cache"))
    parts = [load_dataset("strokes", records=400, seed=seed) for seed in (1, 2, 3)]
    made = PublicData(
        name="small",
        training=replace(parts[0], name="for the run"),
        selection_training=replace(parts[1], name="for the search"),
        selection_proxy=Proxy(data=parts[2], stands_for="strokes", made_by="other seeds"),
    )
    load_public_data.cache_clear()
    monkeypatch.setitem(PUBLIC_DATA, "small", lambda: made)
    yield made
    load_public_data.cache_clear()


def strokes(**more):
    return Experiment.model_validate(
        {
            "name": "lines",
            "method": "fixed",
            "data": {
                "name": "strokes",
                "options": {"records": 300, "seed": 7},
                "partition": "iid",
                "clients": 3,
            },
            "training": {"rounds": 2, "local_steps": 1},
            "representation": {"name": "gradients", "dimension": 16, "public": "small"},
            **more,
        }
    )


def names(dataset):
    return {bytes(one) for part in (dataset.train, dataset.test) for one in part.identities()}


def test_public_records_train_or_judge_but_never_both(small_pool, monkeypatch):
    taught = []
    whole = rehearsing.train_warm_start

    def train_warm_start(local_model, public, settings, *, seed):
        taught.append(public)
        return whole(local_model, public, settings, seed=seed)

    monkeypatch.setattr(rehearsing, "train_warm_start", train_warm_start)
    experiment = strokes(hot_start={"epochs": 1})
    found = tune(experiment, seeds=1, sweeps=1)
    assert taught
    judged = names(small_pool.selection_proxy.data)
    assert all(names(one).isdisjoint(judged) for one in taught)
    assert found.proxy["sha256"] != small_pool.selection_training.train.digest
    assert found.proxy["representation"] == "for the search"
    assert found.proxy["representation_sha256"] == small_pool.selection_training.train.digest
    # The run itself learns from the records that are meant for it.
    final = apply_configuration(experiment, found)
    assert fit_features(final.representation, (1, 28, 28)).provenance["records"] == "for the run"
    assert found.track == "public"


def test_a_representation_says_how_far_it_is(small_pool):
    told = []
    tune(strokes(), seeds=1, sweeps=1, progress=lambda *report: told.append(report[:3]))
    features = {"directions of gradients", "gradients of strokes"}
    assert {task for task, _, _ in told} == {"tuning lines", *features}
    assert any(done == total for task, done, total in told if task in features)


def test_few_records_are_dealt_out_unevenly_in_shards():
    """Twenty clients of three records each: Dirichlet(0.1) would leave some without any."""
    many = clouds(records=90, clients=20)
    evaluator = CandidateEvaluator(read_data(many.data, seed=0))
    setting = evaluator.proxy_task(many, skew=0.1, seeds=range(2))
    assert setting.partition == "shards"
    assert all(len(own) for own in setting.records(0)[1].indices)
    fewer = clouds(records=90, clients=2)
    evaluator = CandidateEvaluator(read_data(fewer.data, seed=0))
    assert evaluator.proxy_task(fewer, skew=0.1, seeds=range(2)).partition == "dirichlet"


def test_what_two_methods_share_is_trained_once_and_the_same(alone, monkeypatch):
    tuned, before = alone
    trained = count_calls(monkeypatch)
    shared = CandidateEvaluator(read_data(OWN.data, seed=0))
    together = {name: tune(OWN, method=name, seeds=2, sweeps=1, evaluator=shared) for name in tuned}
    assert together == tuned
    assert 0 < len(trained) < before


def test_other_budgets_and_more_seeds_on_one_stage_choose_as_alone(alone):
    def tune_fixed(experiment, seeds, evaluator=None):
        return tune(experiment, method="fixed", seeds=seeds, sweeps=1, evaluator=evaluator)

    other = OWN.model_copy(update={"privacy": HEART.privacy})
    shared = CandidateEvaluator(read_data(OWN.data, seed=0))
    for experiment in (OWN, other):
        assert tune_fixed(experiment, 1, shared) == tune_fixed(experiment, 1)
    assert tune_fixed(OWN, 2, shared) == alone[0]["fixed"]


def test_labels_are_dealt_out_so_that_every_seed_can_be():
    shared = CandidateEvaluator(read_data(OWN.data, seed=0))
    few_seeds = shared.proxy_task(OWN, skew=0.1, seeds=[0])
    assert shared.proxy_task(OWN, skew=0.1, seeds=[0]) is few_seeds
    assert shared.proxy_task(OWN, skew=0.1, seeds=range(8)) is not few_seeds


def test_another_bound_is_another_training():
    read = read_data(HEART.data, seed=0)
    shared = CandidateEvaluator(read)
    methods = [HEART.build_method("fixed", {"clipping_bound": bound}) for bound in (0.01, 5.0)]
    scores = [shared.scores(HEART, method, [0, 1]) for method in methods]
    assert scores[0] != scores[1]
    assert scores == [CandidateEvaluator(read).scores(HEART, method, [0, 1]) for method in methods]
