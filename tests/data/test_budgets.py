"""Budgets of single records in a user's files, and what keeps them with their records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from pacdp.data import (
    Dataset,
    Records,
    from_torch,
    load_dataset,
    partition_records,
    read_folder,
    refuse_overlap,
)
from pacdp.data.partition import KINDS
from pacdp.data.records import concatenate_records
from pacdp.errors import DataError, InputError, PacdpError

LEVELS = np.array([0.1, 1.0, 5.0])


def rows(first=0, records=30, budget=True):
    """A table in which the budget of a record can be told from its only feature."""
    header = "age,budget,label" if budget else "age,label"
    lines = []
    for n in range(first, first + records):
        level = f"{LEVELS[n % 3]:g}," if budget else ""
        lines.append(f"{n},{level}{n // 3 % 2}")
    return "\n".join([header, *lines]) + "\n"


def expected(records):
    return LEVELS[records.features[:, 0].astype(int) % 3]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, name in enumerate(("north", "south", "west")):
        (folder / f"{name}.csv").write_text(rows(first=100 * number, records=30 + 6 * number))
    return folder


def test_the_column_is_a_budget_and_not_a_feature(folder):
    data = load_dataset(folder)
    assert data.shape == (1,)
    for records in (data.train, data.test):
        assert records.budgets.dtype == np.float64
        assert np.array_equal(records.budgets, expected(records))


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_keep_budgets_with_their_records(folder, kind):
    data = read_folder(folder)
    split = partition_records(data, kind, clients=None if kind == "natural" else 4)
    for records in split.client_records(data):
        assert np.array_equal(records.budgets, expected(records))
    counts = split.budgets_by_client(data).values()
    assert sum(sum(client.values()) for client in counts) == len(data.train)


def test_budgets_by_unit(tmp_path):
    header = "patient,age,label,budget\n"
    table = "".join(f"p{n // 2},{n},{n // 2 % 2},{LEVELS[n // 2 % 3]}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(header + table)
    data = read_folder(tmp_path, unit="patient")
    assert len(data.train.unit_budgets()) == len(np.unique(data.train.units))
    (tmp_path / "a.csv").write_text(header + table + "p7,99,0,77.5\n")
    with pytest.raises(InputError, match=r"a\.csv, line 62: budget must be the same for all") as no:
        read_folder(tmp_path, unit="patient")
    assert "77.5" not in str(no.value)


@pytest.mark.parametrize("cell", ["0", "-73519", "inf", "nan", "Xanthippe", "", "1e999", "1_0"])
def test_a_wrong_budget_is_located_but_not_shown(tmp_path, cell):
    (tmp_path / "a.csv").write_text(rows() + f"1,{cell},0\n")
    with pytest.raises(PacdpError) as refused:
        read_folder(tmp_path, classes=2)
    path = tmp_path / "a.csv"
    assert str(refused.value) == f"{path}, line 32: budget must be a finite number > 0"


def test_budgets_are_in_all_training_files_or_in_none(folder):
    (folder / "south.csv").write_text(rows(first=100, budget=False))
    with pytest.raises(DataError, match=r"south\.csv: budgets must be given in every file"):
        read_folder(folder)


@pytest.mark.parametrize("budget", [True, False])
@pytest.mark.parametrize("tested", [True, False])
def test_test_records_may_have_budgets(tmp_path, budget, tested):
    (tmp_path / "test").mkdir()
    (tmp_path / "a.csv").write_text(rows(budget=budget))
    (tmp_path / "test" / "a.csv").write_text(rows(first=500, records=6, budget=tested))
    data = read_folder(tmp_path)
    assert data.shape == (1,)
    assert (data.train.budgets is not None, data.test.budgets is not None) == (budget, tested)


def test_a_budget_is_not_scaled(folder):
    (folder / "ranges.toml").write_text("age = [0, 300]\n")
    assert set(read_folder(folder).train.budgets) == set(LEVELS)
    (folder / "ranges.toml").write_text("budget = [0, 300]\n")
    with pytest.raises(DataError, match=r"ranges\.toml"):
        read_folder(folder)


def test_budgets_of_arrays(tmp_path):
    arrays = {"features": np.arange(20.0)[:, None], "labels": np.arange(20) % 2}
    for budgets in (np.full(20, 0.1), np.full(20, 2)):
        np.savez(tmp_path / "a.npz", **arrays, budgets=budgets)
        assert set(read_folder(tmp_path).train.budgets) == {float(budgets[0])}
    wrong = {
        "have shape": np.full(19, 0.1),
        "are float32": np.full(20, 0.1, np.float32),
        "are text": np.full(20, "0.1"),
        "record 0: budget must be": np.full(20, np.inf),
        "record 1: budget must be": np.array([1.0, -1.0] * 10),
    }
    for message, budgets in wrong.items():
        np.savez(tmp_path / "a.npz", **arrays, budgets=budgets)
        with pytest.raises(PacdpError, match=rf"a\.npz.*{message}"):
            read_folder(tmp_path)
    units = np.arange(20) // 2
    np.savez(tmp_path / "a.npz", **arrays, units=units, budgets=np.arange(20) + 1.0)
    with pytest.raises(InputError, match=r"a\.npz, record 1: budget must be the same"):
        read_folder(tmp_path)


def test_budgets_of_torch_data_sets():
    pairs = TensorDataset(torch.randn(4, 3), torch.arange(4) % 2)
    settings = {"name": "mine", "classes": ["x", "y"]}
    data = from_torch(pairs, pairs, budgets=[1, 1, 2, 2], **settings)
    assert data.train.budgets.tolist() == [1.0, 1.0, 2.0, 2.0]
    with pytest.raises(InputError, match="record 1: budget must be a finite number > 0"):
        from_torch(pairs, pairs, budgets=[1.0, 0.0, 1.0, 1.0], **settings)
    with pytest.raises(InputError, match="record 1: budget must be the same"):
        from_torch(pairs, pairs, budgets=[1, 2, 3, 3], units=[5, 5, 6, 6], **settings)


@pytest.mark.parametrize("budgets", [np.zeros(490), np.full(490, np.nan), np.ones((490, 1))])
def test_every_data_set_is_checked(budgets):
    heart = load_dataset("heart")
    with pytest.raises(InputError, match=r"heart, train records.*budget"):
        replace(heart, train=replace(heart.train, budgets=budgets))


def test_digests_depend_on_budgets_only_where_there_are_any():
    plain = Records(features=np.eye(4), labels=np.zeros(4))
    ones = replace(plain, budgets=np.ones(4))
    assert replace(ones, budgets=None).digest == plain.digest
    digests = {plain.digest, ones.digest, replace(plain, budgets=np.full(4, 2.0)).digest}
    same_bytes = replace(plain, units=np.ones(4).view(np.int64))
    assert len({*digests, same_bytes.digest}) == 4
    assert np.array_equal(plain.identities(), ones.identities())


def test_records_are_concatenated_with_their_budgets():
    plain = Records(features=np.eye(4), labels=np.zeros(4))
    ones, twos = (replace(plain, budgets=np.full(4, value)) for value in (1.0, 2.0))
    assert concatenate_records(ones, twos).budgets.tolist() == [1.0] * 4 + [2.0] * 4
    assert concatenate_records(plain, plain).budgets is None
    with pytest.raises(InputError, match="for all of the records or for none"):
        concatenate_records(ones, plain)


def test_a_budget_does_not_hide_a_record_in_a_proxy(folder, tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "a.csv").write_text(rows(budget=False))
    proxy: Dataset = read_folder(tmp_path / "public")
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(proxy, read_folder(folder))
