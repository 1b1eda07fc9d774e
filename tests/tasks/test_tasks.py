"""Labels, targets, storage, and a task that is added from outside the package."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from pacdp.clipping import BinaryCrossEntropy
from pacdp.data import Dataset, Records, load_dataset, partition_records
from pacdp.data.proxy import Proxy
from pacdp.errors import DataError, InputError
from pacdp.experiments.cost import estimate_cost
from pacdp.federation import Model, Plan, Privacy, Training, simulate
from pacdp.federation.local_model import LocalModel
from pacdp.federation.warm_start import WarmStart, train_warm_start
from pacdp.methods import build_method
from pacdp.offline.grid_simulation import score_plans
from pacdp.tasks import Classification, Regression, Task, load_task, register_task, task_for_classes
from pacdp.tasks.base import require_all, require_one_number
from pacdp.tasks.registry import TASKS
from tests.plans import plan_of, proxy_task_of

TRAINING = Training(rounds=4, local_steps=2)


@dataclass(frozen=True)
class Detection(Task):
    """Is it there? One logit for each record, positive above a threshold."""

    name = "detection"
    label_dtype = np.float32
    metric = "recall"
    higher_is_better = True

    threshold: float = 0.5

    @property
    def outputs(self):
        return 1

    @property
    def loss(self):
        return BinaryCrossEntropy()

    def require_labels(self, where, labels, lines=None):
        require_one_number(where, labels)
        require_all(where, np.isin(labels, (0, 1)), "0 or 1", lines)

    def targets(self, labels):
        return torch.from_numpy(labels.astype(np.float32))

    def predict(self, outputs):
        return outputs.double().sigmoid().squeeze(-1).cpu().numpy()

    def quick_metrics(self, predictions, labels):
        return {"recall": float((predictions > self.threshold)[labels == 1].mean())}

    def full_metrics(self, predictions, labels):
        return self.quick_metrics(predictions, labels)

    def table_header(self):
        return ["probability"]

    def table_row(self, prediction):
        return [f"{prediction:.6g}"]


@pytest.fixture
def detection():
    yield register_task(Detection)
    del TASKS["detection"]


def detection_data(task):
    heart = load_dataset("heart")

    def relabel(records):
        return Records(
            features=records.features, labels=records.labels.astype(np.float32), clients=None
        )

    return Dataset(
        name="found",
        train=relabel(heart.train),
        test=relabel(heart.test),
        task=task,
        provenance=heart.provenance,
    )


def planned(task, **changes):
    settings = {
        "sizes": {"a": 40, "b": 30},
        "shape": (13,),
        "task": task,
        "method": build_method("fixed"),
        "training": TRAINING,
        "privacy": Privacy(epsilon=5.0),
    }
    return plan_of(**settings | changes)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_task_from_outside_is_planned_stored_and_trained(detection, tmp_path, engine, model):
    data = detection_data(detection(threshold=0.4))
    split = partition_records(data, "iid", clients=3)
    plan = planned(
        data.task,
        sizes=split.sizes_by_client,
        model=Model(name=model),
        privacy=Privacy(epsilon=100.0),
        training=Training(rounds=10, local_steps=3),
    )
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["task"] == {
        "name": "detection",
        "threshold": 0.4,
    }
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.run == plan.run
    assert planned(detection()).run != planned(detection(threshold=0.4)).run
    result = simulate(loaded, data, split, engine=engine)
    assert list(result.metrics) == ["recall"]
    assert result.metrics["recall"] > 0.6
    assert (result.chance, list(result.accuracies)) == (None, [None] * 3)
    assert estimate_cost(plan).steps == 90
    with pytest.raises(InputError, match="splits by class; detection has"):
        partition_records(data, "dirichlet", clients=3)
    state = train_warm_start(LocalModel(plan), data, WarmStart(epochs=1), seed=0)
    assert set(state) == set(result.model)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_grid_of_a_task_from_outside_is_scored_as_single_runs_are(detection, model):
    data = detection_data(detection())
    proxy_task = proxy_task_of(
        proxy=Proxy(data=data, stands_for="hearts", made_by="as it is"),
        sizes={"a": 60, "b": 90},
        training=TRAINING,
        model=Model(name=model),
        privacy=Privacy(),
    )
    plans = [proxy_task.plan(20.0, 0.5, seed) for seed in (0, 1)]
    together = score_plans(plans, [proxy_task.records(seed) for seed in (0, 1)], initial=None)
    assert together == pytest.approx(
        [proxy_task.score(20.0, 0.5, seed) for seed in (0, 1)], abs=0.02
    )


def test_a_task_name_is_taken_once(detection):
    with pytest.raises(InputError, match="task classification: is registered already"):
        register_task(type("Other", (Classification,), {"name": "classification"}))


def test_a_plan_keeps_the_key_of_its_classes(tmp_path):
    """Runs are named after a digest of the JSON: old ledgers must still know theirs."""
    for task, classes in ((Classification.named(["no", "yes"]), 2), (Regression(), 0)):
        plan = planned(task)
        content = plan.model_dump(mode="json")
        assert list(content)[:5] == ["arithmetic", "data", "model", "shape", "classes"]
        assert content["classes"] == classes
        assert "task" not in content
        assert Plan.model_validate(content) == plan
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json").run == plan.run
    assert planned(Classification(2)).run == "data-fixed-seed-0-8336569f884e"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": "many"}, "must be a number of classes, or a table"),
        ({"classes": True}, "must be a number of classes, or a table"),
        ({"classes": -1}, r"must be 0 \(regression\) or at least 2"),
        ({"classes": {"name": "clasification"}}, "did you mean classification"),
        ({"classes": {"name": "regression", "classes": 3}}, "task regression: "),
    ],
)
def test_plans_with_a_wrong_task_are_refused(tmp_path, changes, message):
    content = planned(Classification(2)).model_dump(mode="json") | changes
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)


def test_tasks_are_the_same_if_what_is_stored_is():
    assert Classification.named(["no", "yes"]) == Classification(2) != Classification(3)
    assert hash(Classification.named(["no", "yes"])) == hash(Classification(2))
    assert Regression() == load_task(0) == load_task(Regression())
    assert load_task({"name": "classification", "classes": 3}) == Classification(3)
    assert task_for_classes(["no", "yes"]).class_names == ("no", "yes")
    assert task_for_classes(2).class_names == ("0", "1")


def test_a_model_needs_two_classes():
    assert Classification(1).stratum_count == 1
    with pytest.raises(InputError, match="classes = 1: must be at least 2"):
        LocalModel(planned(Classification(1)))


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (Classification(2), [0, -1], "record 1: label must be a whole number from 0 to 1"),
        (Classification(2), [0.5, 1], "record 0: label must be a whole number from 0 to 1"),
        (Classification(2), ["yes", "no"], "labels are text of shape"),
        (Regression(), [0.5, np.nan], "record 1: label must be a finite number"),
        (Regression(), [[0.5], [1.0]], r"of shape \(2, 1\), must be one number"),
    ],
)
def test_labels_that_are_refused(task, labels, message):
    with pytest.raises(InputError, match=message):
        task.require_labels("a.csv", np.array(labels))


def test_messages_name_the_line_of_a_file():
    with pytest.raises(InputError, match=r"^a\.csv, line 7: label must be a finite number$"):
        Regression().require_labels("a.csv", np.array([0.5, np.inf]), lines=[3, 7])


@pytest.mark.parametrize("task", [Classification(3), Regression()])
def test_targets_fit_the_loss_whatever_type_the_labels_have(task):
    outputs = torch.zeros(4, task.outputs)
    for kind in (np.float64, np.float32, np.int64, np.uint8):
        targets = task.targets(np.array([0, 1, 2, 1], kind))
        assert task.loss(outputs, targets).shape == (4,)
        assert targets.dtype == task.synthetic_targets(4).dtype
    assert task.loss(outputs, task.synthetic_targets(4)).shape == (4,)


def test_groups_by_which_records_are_split():
    labels = np.array([0, 2, 1])
    assert Classification(3).strata(labels).tolist() == [0, 2, 1]
    assert Regression().strata(labels).tolist() == [0, 0, 0]
    assert (Classification(3).stratum_count, Regression().stratum_count) == (3, 1)


def test_tables_of_predictions():
    assert Classification(2).table_header() == ["class", "probability_0", "probability_1"]
    assert Classification(2).table_row(np.array([0.25, 0.75])) == [1, "0.25", "0.75"]
    assert Regression().table_header() == ["value"]
    assert Regression().table_row(1 / 3) == ["0.333333"]
