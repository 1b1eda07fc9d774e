"""A user's own data, and everything that can be wrong with it."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from pacdp.data import from_torch, load_dataset, partition_records, read_folder, refuse_overlap
from pacdp.errors import DataError, InputError
from pacdp.tasks import Classification, Regression


def write(folder, **files):
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)
    return folder


def table(rows, header="age,rate,label"):
    return header + "\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"


GOOD = table([(n, 2 * n, n % 2) for n in range(20)])


def test_a_folder_of_tables(tmp_path):
    data = load_dataset(write(tmp_path / "mine", north=GOOD, south=GOOD))
    assert (data.name, data.clients, data.shape) == ("mine", ("north", "south"), (2,))
    assert len(data.test) == 8  # a fifth of each class of each client
    assert data.unit == "record"
    assert data.train.labels.dtype == np.int64


def test_files_of_arrays(tmp_path):
    images = np.zeros((10, 3, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", features=images, labels=np.arange(10) % 2)
    np.savez(tmp_path / "b.npz", features=images, labels=np.arange(10) % 2)
    assert load_dataset(tmp_path).shape == (3, 4, 4)


def test_a_person_is_never_torn_apart(tmp_path):
    rows = [(f"p{n // 4}", n, n // 4 % 2) for n in range(80)]
    folder = write(tmp_path, a=table(rows, "unit,age,label"), b=table(rows, "unit,age,label"))
    data = read_folder(folder, unit="patient")
    assert data.unit == "patient"
    assert not set(data.train.units) & set(data.test.units)
    assert set(np.bincount(data.train.units)) == {0, 4}
    # The same name in two hospitals is two units: each promises for its own.
    assert len(set(data.train.units) | set(data.test.units)) == 40


def test_published_ranges_scale_and_nothing_else(tmp_path):
    write(tmp_path, a=GOOD)
    (tmp_path / "ranges.toml").write_text("age = [0, 10]\n")
    data = read_folder(tmp_path)
    assert data.train.features[:, 0].min() >= -1
    assert data.train.features[:, 0].max() == 1
    assert data.train.features[:, 1].max() > 10


def test_a_test_folder_of_the_servers_own(tmp_path):
    write(tmp_path, a=GOOD)
    write(tmp_path / "test", a=table([(1, 3, 0)]))
    data = read_folder(tmp_path)
    assert (len(data.train), len(data.test)) == (20, 1)
    write(tmp_path / "test", a=table([(1, 2, 1)]))
    with pytest.raises(DataError, match=r"test: contains records that are also in the training"):
        read_folder(tmp_path)
    write(tmp_path / "test", a=table([(1, 3, 0)]), z=table([(1, 4, 0)]))
    with pytest.raises(DataError, match="client z has no training file"):
        read_folder(tmp_path)


def test_nobody_is_in_training_and_in_test(tmp_path):
    header = "unit,age,label"
    write(tmp_path, a=table([(f"p{n}", n, n % 2) for n in range(10)], header))
    write(tmp_path / "test", a=table([(" p3 ", 99, 0)], header))
    with pytest.raises(DataError, match=r"test: contains a unit that is also in the training"):
        read_folder(tmp_path)
    write(tmp_path / "test", a=table([("q", 99, 0)], header))
    data = read_folder(tmp_path)
    assert not set(data.train.units) & set(data.test.units)


def test_columns_go_by_their_names(tmp_path):
    swapped = table([(2 * n, n, n % 2) for n in range(20)], "rate,age,label")
    data = read_folder(write(tmp_path, a=GOOD, b=swapped))
    assert (data.train.features[:, 1] == 2 * data.train.features[:, 0]).all()
    write(tmp_path, b=table([(1, 2, 0)], "age,weight,label"))
    with pytest.raises(DataError, match=r"b.csv: lacks the column rate"):
        read_folder(tmp_path)


def test_the_unit_column_may_have_its_own_name(tmp_path):
    rows = table([(f"p{n // 2}", n, n // 2 % 2) for n in range(40)], "patient,age,label")
    data = read_folder(write(tmp_path, a=rows), unit="patient")
    assert (data.unit, data.shape) == ("patient", (1,))
    with pytest.raises(DataError, match="identifiers belong in a column unit"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="no file has a column 'unit' or 'person'"):
        read_folder(write(tmp_path, a=GOOD), unit="person")


def test_scaling_does_not_hide_whose_a_record_is(tmp_path):
    plain = read_folder(write(tmp_path / "plain", a=GOOD))
    write(tmp_path / "scaled", a=GOOD)
    (tmp_path / "scaled" / "ranges.toml").write_text("age = [0, 10]")
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(read_folder(tmp_path / "scaled"), plain)


def test_one_wrong_label_does_not_change_the_task(tmp_path):
    wrong = r"a\.csv, line 22: label must be a class number"
    for label, message in ((-1, wrong), (1.5, wrong), (7, "labels skip a number")):
        write(tmp_path, a=GOOD + f"1,1,{label}\n")
        with pytest.raises(DataError, match=message):
            read_folder(tmp_path)
    assert read_folder(tmp_path, classes=8).task == Classification(8)


def test_regression(tmp_path):
    write(tmp_path, a=table([(n, n, n / 7) for n in range(20)]))
    data = read_folder(tmp_path)
    assert data.task == Regression()
    assert data.train.labels.dtype == np.float32
    assert len(data.test) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,label\n", r"a.csv: has no records"),
        ("", r"a.csv: is empty"),
        ("age;label\n1;0\n", r"a.csv: .* must be separated by commas"),
        ("age,age,label\n1,1,0\n", r"a.csv: has two columns age"),
        ("unit,age,label\np,1,0\n ,2,1\n", r"a.csv, line 3: unit is empty"),
        ("age,label\n\n\n1_0,0\n", r"a.csv, line 4: age must be a number"),
        (
            "age,rate\n1,2\n",
            r"a.csv: has no column label; its first line must be a header with label",
        ),
        ("label\n1\n", r"a.csv: has no features"),
        ("age,label\n1\n", r"a.csv, line 2: must have 2 cells"),
        ("age,label\n1,0\nold,1\n", r"a.csv, line 3: age must be a number"),
        ("age,label\n,0\n", r"a.csv, line 2: age must be a number"),
        ("age,label\n1,0\nnan,1\n", r"a.csv, line 3: age must be a number"),
        ("age,label\n1,-1\n", r"a.csv, line 2: label must be a whole number"),
        ("age,label\n1,5\n", r"a.csv, line 2: label must be a whole number from 0 to 1"),
    ],
)
def test_bad_tables_are_refused_with_their_place(tmp_path, content, message):
    with pytest.raises((DataError, InputError), match=message):
        read_folder(write(tmp_path, a=content), classes=2)


def test_clients_that_do_not_fit_together(tmp_path):
    write(tmp_path, a=GOOD, b="age,label\n1,0\n")
    with pytest.raises(DataError, match=r"b.csv: lacks the column rate"):
        read_folder(tmp_path)
    write(tmp_path, b=table([("p", 1, 2, 0)], "unit,age,rate,label"))
    with pytest.raises(DataError, match=r"b.csv: units must be given in every file or in none"):
        read_folder(tmp_path)


def test_files_that_are_no_arrays(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK not really")
    with pytest.raises(DataError, match=r"a.npz: is not an .npz file"):
        read_folder(tmp_path)
    np.savez(tmp_path / "a.npz", features=np.zeros((2, 2)))
    with pytest.raises(DataError, match="must hold features and labels"):
        read_folder(tmp_path)
    np.savez(tmp_path / "a.npz", features=np.array([[object()]]), labels=np.array([0]))
    with pytest.raises(DataError, match="of plain arrays"):
        read_folder(tmp_path)


def test_folders_without_or_with_too_many_clients(tmp_path):
    with pytest.raises(DataError, match=r"holds no .csv or .npz file"):
        read_folder(tmp_path)
    write(tmp_path, a=GOOD)
    np.savez(tmp_path / "a.npz", features=np.zeros((2, 2)), labels=np.zeros(2))
    with pytest.raises(DataError, match="client a has two files"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "ranges",
    [
        *("age = [3, 1]", "age = 5", "age = [1, 'x']", "age =", "age = [nan, 1]", "Age = [0, 1]"),
        *("age = [false, true]", f"age = [1, 1{'0' * 400}]"),
    ],
)
def test_bad_ranges(tmp_path, ranges):
    write(tmp_path, a=GOOD)
    (tmp_path / "ranges.toml").write_text(ranges)
    with pytest.raises(DataError, match=r"ranges.toml"):
        read_folder(tmp_path)


def test_torch_data_sets():
    features, labels = torch.randn(12, 3), torch.arange(12) % 3
    pairs = TensorDataset(features, labels)
    data = from_torch(
        *(pairs, pairs),
        name="mine",
        classes=["x", "y", "z"],
        clients=["a", "b"],
        holders=[n // 2 % 2 for n in range(12)],
        units=[n // 2 for n in range(12)],
        unit="patient",
    )
    assert np.allclose(data.train.features, features)
    assert data.train.labels.tolist() == labels.tolist()
    assert data.unit == "patient"
    with pytest.raises(
        InputError, match=r"mine, train records, record 2: label must be a whole number from 0 to 1"
    ):
        from_torch(pairs, pairs, name="mine", classes=["x", "y"])
    with pytest.raises(InputError, match="are none"):
        from_torch([], pairs, name="mine", classes=["x", "y", "z"])


def test_torch_data_sets_whose_parts_disagree():
    pairs = TensorDataset(torch.randn(4, 3), torch.arange(4) % 2)
    settings = {"name": "mine", "classes": ["x", "y"]}
    people = {"units": [5, 5, 6, 6], "unit": "patient", "clients": ["a", "b"]}
    with pytest.raises(InputError, match="a patient is held by two clients"):
        from_torch(pairs, pairs, holders=[0, 1, 0, 1], **people, **settings)
    with pytest.raises(InputError, match="must be from 0 to 1"):
        from_torch(pairs, pairs, holders=[0, 1, 7, 1], clients=["a", "b"], **settings)
    with pytest.raises(InputError, match="two clients have the same name"):
        from_torch(pairs, pairs, holders=[0, 1, 0, 1], clients=["a", "a"], **settings)
    with pytest.raises(InputError, match="units: are float64"):
        from_torch(pairs, pairs, units=[0.1, 0.9, 1.2, 1.7], unit="patient", **settings)


def test_files_with_other_endings_are_not_passed_over(tmp_path):
    write(tmp_path, a=GOOD)
    (tmp_path / "B.CSV").write_text(GOOD)
    assert read_folder(tmp_path).clients == ("B", "a")
    (tmp_path / "c.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"c.xlsx: is neither .csv nor .npz"):
        read_folder(tmp_path)


def test_regression_fits_the_models_answers(tmp_path):
    data = read_folder(write(tmp_path, a=table([(n, n, n / 7) for n in range(20)])))
    assert data.train.tensors(data.task)[1].shape == (16, 1)
    with pytest.raises(InputError, match="splits by class"):
        partition_records(data, "dirichlet", clients=2)
