"""Heart, the small sets, and what every data set refuses."""

import numpy as np
import pytest

from pacdp.data import Dataset, Provenance, Records, load_dataset
from pacdp.data.digests import digest_rows
from pacdp.data.heart import COLUMNS, TEST_SHARE
from pacdp.data.records import draw_stratified
from pacdp.errors import InputError
from pacdp.tasks import Classification, Regression

NOWHERE = Provenance(source="a test", licence="none")


def test_heart_is_flambys_reading():
    data = load_dataset("heart")
    held = np.concatenate([data.train.clients, data.test.clients])
    assert np.bincount(held).tolist() == [303, 261, 46, 130]
    labels = np.concatenate([data.train.labels, data.test.labels])
    # Sick and healthy in each hospital, counted in the published files.
    sick = [int(labels[held == hospital].sum()) for hospital in range(4)]
    assert sick == [139, 98, 45, 101]
    assert data.shape == (13,)
    assert data.clients == ("cleveland", "hungary", "switzerland", "long-beach")


def test_heart_full_has_everyone():
    data = load_dataset("heart-full")
    held = np.concatenate([data.train.clients, data.test.clients])
    assert np.bincount(held).tolist() == [303, 294, 123, 200]
    features = np.concatenate([data.train.features, data.test.features])
    # Flags, in the order of the columns that have one; chol = 0 is no cholesterol.
    flagged = features[:, 18:].sum(0).astype(int).tolist()
    assert flagged == [60, 202, 90, 2, 55, 55, 62, 309, 611, 486]


@pytest.mark.parametrize("name", ["heart", "heart-full"])
def test_heart_is_bounded_by_published_ranges(name):
    features = load_dataset(name).train.features
    assert features.min() >= -1
    assert features.max() <= 1


def test_first_patient_of_cleveland():
    """63, male, typical angina, 145/233, fasting sugar, LVH, 150, no, 2.3 (processed.cleveland)."""
    age, pressure, cholesterol, rate = 22 / 22, 0.25, (233 - 220) / 60, (150 - 140) / 80
    expected = [(63 - 52) / 22, 1, 0, 0, 0, pressure, cholesterol, 1, 0, 1, rate, 0, 1]
    assert age == 1
    data = load_dataset("heart")
    features = np.concatenate([data.train.features, data.test.features])
    assert np.isclose(features, expected, atol=1e-6).all(1).any()


def test_scaling_asks_no_other_record():
    """A record's features are the same whoever else is in the table."""
    for column in COLUMNS.values():
        values = np.array([column.missing, 1.0, 3.0, 150.0])
        alone = np.concatenate([column.encode(values[i : i + 1]) for i in range(4)])
        assert np.array_equal(column.encode(values), alone)


@pytest.mark.parametrize("name", ["heart", "heart-full", "digits", "breast-cancer", "synthetic"])
def test_splits_are_seeded_stratified_and_apart(name):
    one, same, other = load_dataset(name), load_dataset(name), load_dataset(name, split=1)
    assert np.array_equal(one.test.features, same.test.features)
    assert not np.array_equal(one.test.features, other.test.features)
    assert len(one.test) == len(other.test)
    share = TEST_SHARE if name.startswith("heart") else 0.2
    for label in range(one.task.stratum_count):
        in_test, in_train = (int((r.labels == label).sum()) for r in (one.test, one.train))
        assert in_test == pytest.approx(share * (in_test + in_train), abs=4)


def test_heart_is_split_within_each_hospital():
    data = load_dataset("heart")
    for hospital in range(4):
        test = int((data.test.clients == hospital).sum())
        both = test + int((data.train.clients == hospital).sum())
        assert test == pytest.approx(TEST_SHARE * both, abs=1)


def test_synthetic_is_what_was_asked_for():
    data = load_dataset("synthetic", records=300, features=7, classes=3, clients=5, seed=4)
    assert (len(data.train) + len(data.test), data.shape, len(data.clients)) == (300, (7,), 5)
    again = load_dataset("synthetic", records=300, features=7, classes=3, clients=5, seed=4)
    assert np.array_equal(data.train.features, again.train.features)
    with pytest.raises(InputError, match="records = 9: must be at least 5 for each"):
        load_dataset("synthetic", records=9)


def dataset(features, labels, task=Classification(2)):  # noqa: B008
    records = Records(features=np.asarray(features, float), labels=np.asarray(labels))
    return Dataset(name="x", train=records, test=records, task=task, provenance=NOWHERE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_no_numbers(bad):
    with pytest.raises(
        InputError, match=r"x, train records, record 1: feature 0 must be a finite number"
    ):
        dataset([[1.0], [bad]], [0, 1])


@pytest.mark.parametrize("bad", [-1, 2, 0.5])
def test_labels_out_of_range(bad):
    with pytest.raises(InputError, match=r"record 1: label must be a whole number from 0 to"):
        dataset([[1.0], [2.0]], [0, bad])


def test_regression_labels_must_be_finite():
    assert dataset([[1.0], [2.0]], [0.5, -3.0], Regression()).task.class_names == ()
    with pytest.raises(InputError, match="must be a finite number"):
        dataset([[1.0], [2.0]], [0.5, np.nan], Regression())


def test_units_and_their_word_agree():
    records = Records(features=np.ones((2, 1)), labels=np.array([0, 1]), units=np.array([0, 0]))
    parts = {"name": "x", "train": records, "test": records, "task": Classification(2)}
    assert Dataset(**parts, unit="patient", provenance=NOWHERE).unit == "patient"
    with pytest.raises(InputError, match="unit = 'record', but its records have their units"):
        Dataset(**parts, provenance=NOWHERE)


def test_tensors_are_copies():
    data = load_dataset("heart")
    inputs = data.train.inputs()
    before = data.train.features.copy()
    inputs.mul_(0)
    assert np.array_equal(data.train.features, before)
    with pytest.raises(InputError, match="must be a finite number"):
        dataset([[1e300], [1.0]], [0, 1])


def test_one_label_moves_nobody_of_another_group():
    groups = np.arange(400) % 4
    changed = groups.copy()
    changed[0] = 1
    moved = draw_stratified(groups, 0.2, 0) != draw_stratified(changed, 0.2, 0)
    assert not moved[groups > 1].any()


def test_no_records_and_lengths_that_disagree():
    with pytest.raises(InputError, match="has no training records"):
        dataset(np.zeros((0, 2)), [])
    with pytest.raises(InputError, match="labels: has 1 values for 2 records"):
        dataset([[1.0], [2.0]], [0])


def test_digests_tell_records_apart_and_nothing_else():
    rows = np.random.default_rng(0).normal(size=(50, 4))
    assert len(np.unique(digest_rows(rows).view("S16"))) == 50
    assert np.array_equal(digest_rows(rows), digest_rows(rows.astype(np.float32)))
    assert digest_rows(np.array([[0.0]]))[0] == digest_rows(np.array([[-0.0]]))[0]
