"""Partitions: every record once, nobody empty, units whole, the same from the same seed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacdp.data import Partition, load_dataset, partition_records
from pacdp.data.partition import RULES
from pacdp.errors import DataError, InputError
from pacdp.reporting.figures.data import draw_partition

DIGITS = load_dataset("digits")


def with_units(dataset, size):
    units = np.arange(len(dataset.train)) // size
    return replace(dataset, train=replace(dataset.train, units=units), unit="person")


@given(
    kind=st.sampled_from(list(RULES)),
    clients=st.integers(1, 40),
    seed=st.integers(0, 1000),
    unit=st.sampled_from([1, 3]),
)
def test_every_record_has_one_holder(kind, clients, seed, unit):
    data = DIGITS if unit == 1 else with_units(DIGITS, unit)
    made = partition_records(data, kind, clients=clients, seed=seed)
    held = np.concatenate(made.indices)
    assert np.array_equal(np.sort(held), np.arange(len(data.train)))
    assert len(made) == clients
    assert made.sizes.min() >= 1
    again = partition_records(data, kind, clients=clients, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(made.indices, again.indices, strict=True))
    if unit > 1:
        holders = [set(data.train.units[index]) for index in made.indices]
        assert sum(map(len, holders)) == len(np.unique(data.train.units))


def skew(made, data):
    """How far the clients' label shares are from the global ones, on average."""
    counts = made.class_counts(data)
    shares = counts / counts.sum(1, keepdims=True)
    return np.abs(shares - counts.sum(0) / counts.sum()).sum(1).mean()


def test_kinds_differ_as_they_should():
    made = {k: partition_records(DIGITS, k, clients=10) for k in ("iid", "dirichlet", "shards")}
    near = partition_records(DIGITS, "near-global", clients=10)
    assert made["iid"].sizes.max() - made["iid"].sizes.min() <= 1
    assert skew(near, DIGITS) < 0.5 * skew(made["dirichlet"], DIGITS)
    assert near.sizes.max() > 1.3 * near.sizes.min()
    flat, steep = (
        partition_records(DIGITS, "dirichlet", clients=10, alpha=a) for a in (100.0, 0.1)
    )
    assert skew(flat, DIGITS) < 0.3 < skew(steep, DIGITS)
    # Two shards of sorted labels hold two classes, three where a shard crosses a border.
    assert (made["shards"].class_counts(DIGITS) > 0).sum(1).max() <= 4
    uneven = partition_records(DIGITS, "quantity", clients=10, beta=0.5)
    assert uneven.sizes.max() > 3 * uneven.sizes.min()


def test_a_class_that_nobody_drew_is_drawn_again():
    data = load_dataset("heart")
    for seed in range(20):
        made = partition_records(data, "near-global", clients=2, seed=seed, concentration=0.01)
        assert made.class_counts(data).sum() == len(data.train)


def test_natural_clients():
    data = load_dataset("heart")
    made = partition_records(data, "natural")
    assert made.clients == data.clients
    for number, records in enumerate(made.client_records(data)):
        assert set(records.clients) == {number}
    with pytest.raises(InputError, match="digits has no natural clients"):
        partition_records(DIGITS, "natural")


def test_a_natural_client_without_records():
    data = load_dataset("heart")
    data = type(data)(**vars(data) | {"clients": (*data.clients, "nobody")})
    with pytest.raises(InputError, match="client nobody: has no records"):
        partition_records(data, "natural")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("sorted", {"clients": 3}, "must be one of natural, iid, dirichlet"),
        ("iid", {}, "needs the number of clients"),
        ("iid", {"clients": 0}, "clients = 0"),
        ("iid", {"clients": 5000}, "must be at most 1438, or some would have no records"),
        ("iid", {"clients": 3, "alpha": 1.0}, "has no setting alpha; there are none"),
        ("dirichlet", {"clients": 3, "alpha": -1.0}, "alpha = -1"),
        ("dirichlet", {"clients": 1000, "alpha": 0.01}, "draws each left a client without"),
        ("shards", {"clients": 1000, "per_client": 2.0}, "more than 1438 records"),
        ("shards", {"clients": 5, "per_client": 1.5}, "per_client"),
        ("dirichlet", {"clients": 3, "alpha": 1e308}, "draws each left a client without"),
        ("iid", {"clients": 3, "seed": -1}, "seed = -1: must be a whole number >= 0"),
    ],
)
def test_bad_settings(kind, settings, message):
    with pytest.raises(InputError, match=message):
        partition_records(DIGITS, kind, **settings)


def test_saved_with_a_run_and_read_back(tmp_path):
    made = partition_records(DIGITS, "dirichlet", clients=7, seed=3, alpha=0.3)
    made.save(tmp_path / "p.json")
    back = Partition.load(tmp_path / "p.json")
    assert (back.kind, back.seed, back.settings) == ("dirichlet", 3, {"alpha": 0.3})
    for one, other in zip(made.client_records(DIGITS), back.client_records(DIGITS), strict=True):
        assert np.array_equal(one.features, other.features)
    with pytest.raises(DataError, match="was made for different records"):
        back.client_records(load_dataset("digits", split=1))
    with pytest.raises(DataError, match="was made for different records"):
        back.client_records(with_units(DIGITS, 3))
    content = json.loads((tmp_path / "p.json").read_text())
    for wrong in (-1, 0.5, content["records"][0][0]):
        content["records"][1][0] = wrong
        (tmp_path / "p.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match="assigns a record twice or not at all"):
            Partition.load(tmp_path / "p.json")
    (tmp_path / "p.json").write_text('{"kind": 3}')
    with pytest.raises(DataError, match=r"p.json: is not a partition"):
        Partition.load(tmp_path / "p.json")


def test_the_picture_shows_every_client():
    made = partition_records(DIGITS, "dirichlet", clients=12)
    left, right, bar = draw_partition(DIGITS, made).axes
    assert left.get_xlabel() == "class"
    assert right.get_xlabel() == "records in all"
    assert bar.get_title() == "records"
    assert sum(patch.get_width() for patch in right.patches) == len(DIGITS.train)
