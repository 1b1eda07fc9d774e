"""No refusal shows what is in a private file: not in its message, nor in what --debug prints."""

import json
import pickle
import sys
import traceback

import numpy as np
import pytest
import torch

from pacdp.cli import main
from pacdp.data import Partition, formats, from_torch, load_dataset, read_folder, refuse_overlap
from pacdp.data.storage import open_files
from pacdp.errors import PacdpError

SECRET = "Xanthippe"
# Recognisable however it is printed, and no part of a path or of a limit.
NUMBER = 73519


def refusal(call, *arguments, **settings):
    """The message of a refusal that keeps the secrets, with all that a traceback would add."""
    with pytest.raises(PacdpError) as refused:
        call(*arguments, **settings)
    printed = "".join(traceback.format_exception(refused.value))
    # An array of text has a type such as <U9.
    for secret in (SECRET, SECRET.lower(), SECRET[:6], str(NUMBER), "7.3519", "<U", "|S"):
        assert secret not in printed
    assert "\n" not in str(refused.value)
    return str(refused.value)


def good(header="age,rate,label", rows=20):
    return header + "\n" + "".join(f"{n},{2 * n},{n % 2}\n" for n in range(rows))


TABLES = {
    "a feature": (f"age,label\n1,0\n{SECRET},1\n", "a.csv, line 3: age must be a number"),
    "a marker": (f"age,label\n1,0\n<{SECRET}>,1\n", "a.csv, line 3: age must be a number"),
    "a large feature": (f"age,label\n1,0\n{NUMBER}e300,1\n", "a.csv, line 3: age must be"),
    "a label": (f"age,label\n1,{SECRET}\n", "a.csv, line 2: label must be a number"),
    "an unknown class": (f"age,label\n1,0\n\n1,{NUMBER}\n", "a.csv, line 4: label must be a whole"),
    "a negative class": (f"age,label\n1,-{NUMBER}\n", "a.csv, line 2: label must be a whole"),
    "a broken class": (f"age,label\n1,0.{NUMBER}\n", "a.csv, line 2: label must be a whole"),
    "a long line": (f"age,label\n1,0,{SECRET}\n", "a.csv, line 2: must have 2 cells"),
    "a file without a header": (f"{SECRET},{SECRET},1\n", "a.csv: has no column label"),
    "another separator": (f"{SECRET};1\n{SECRET};0\n", "a.csv: has no column label"),
    "a budget": (f"age,budget,label\n1,{SECRET},0\n", "a.csv, line 2: budget must be a finite"),
    "a negative budget": (f"age,budget,label\n1,-{NUMBER},0\n", "a.csv, line 2: budget must be"),
    "two budgets of a unit": (
        f"unit,age,budget,label\n{SECRET},1,2,0\n{SECRET},1,{NUMBER},0\n",
        "a.csv, line 3: budget must be the same for all records of a unit",
    ),
    "an empty unit": (f"unit,age,label\n{SECRET},1,0\n,2,1\n", "a.csv, line 3: unit is empty"),
}


@pytest.mark.parametrize(("content", "message"), TABLES.values(), ids=TABLES)
def test_tables(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    assert message in refusal(read_folder, tmp_path, classes=2)


@pytest.mark.parametrize(
    "content",
    [
        f"age,label\n{SECRET},0\n".encode("utf-16"),
        f"age,label\n{SECRET}\xff,0\n".encode("latin-1"),
        f"age,label\n{SECRET * 20_000},0\n".encode(),
    ],
)
def test_files_that_are_no_tables(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    assert "a.csv" in refusal(read_folder, tmp_path, classes=2)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (NUMBER, "labels skip a number"),
        (-NUMBER, "a.csv, line 22: label must be a class number"),
        (NUMBER + 0.5, "a.csv, line 22: label must be a class number"),
        (f"{NUMBER}e300", "a.csv, line 22: label must be a number"),
    ],
)
def test_labels_that_decide_the_task(tmp_path, label, message):
    (tmp_path / "a.csv").write_text(good() + f"1,1,{label}\n")
    assert message in refusal(read_folder, tmp_path)


def test_units_in_training_and_test(tmp_path):
    (tmp_path / "a.csv").write_text(f"patient,age,label\n{SECRET},1,0\nq,2,1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.csv").write_text(f"patient,age,label\n{SECRET},{NUMBER},0\n")
    message = refusal(read_folder, tmp_path, unit="patient", classes=2)
    assert "contains a patient that is also in the training files" in message


def test_records_in_training_and_test(tmp_path):
    (tmp_path / "test").mkdir()
    for folder, rows in ((tmp_path, 20), (tmp_path / "test", 7)):
        (folder / "a.csv").write_text(good(rows=rows) + f"{NUMBER},{NUMBER},0\n")
    message = refusal(read_folder, tmp_path, classes=2)
    reason = "contains records that are also in the training files; remove them"
    assert message == f"{tmp_path / 'test'}: {reason}"


TEXT = np.array([SECRET, "b"])
ARRAYS = {
    "text features": {"features": np.array([[SECRET], ["b"]]), "labels": np.array([0, 1])},
    "features that are not finite": {
        "features": np.array([[NUMBER, 1.0], [np.inf, NUMBER]]),
        "labels": np.array([0, 1]),
    },
    "features beyond single precision": {
        "features": np.array([[NUMBER * 1e300], [1.0]]),
        "labels": np.array([0, 1]),
    },
    "text labels": {"features": np.eye(2), "labels": TEXT},
    "labels out of range": {"features": np.eye(2), "labels": np.array([0, NUMBER])},
    "labels of bytes": {"features": np.eye(2), "labels": TEXT.astype("S")},
    "units in two columns": {
        "features": np.eye(2),
        "labels": np.array([0, 1]),
        "units": np.array([[SECRET], ["b"]]),
    },
    "text budgets": {"features": np.eye(2), "labels": np.array([0, 1]), "budgets": TEXT},
    "negative budgets": {
        "features": np.eye(2),
        "labels": np.array([0, 1]),
        "budgets": np.array([1.0, -NUMBER]),
    },
    "objects": {"features": np.array([[SECRET], [None]]), "labels": np.array([0, 1])},
    "records with fields": {
        "features": np.array([(1, SECRET)], [("age", int), ("name", "U9")]),
        "labels": np.array([0]),
    },
}


@pytest.mark.parametrize("arrays", ARRAYS.values(), ids=ARRAYS)
def test_arrays(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    assert "a.npz" in refusal(read_folder, tmp_path, classes=2)


@pytest.mark.parametrize("content", [SECRET, f"PK\x03\x04{SECRET}", f"\x93NUMPY\x01\x00{SECRET}"])
def test_files_that_are_no_arrays(tmp_path, content):
    (tmp_path / "a.npz").write_text(content, encoding="latin-1")
    assert "a.npz: is not an .npz file" in refusal(read_folder, tmp_path)


PAIRS = [(torch.ones(2), 0), (torch.zeros(2), 1)]


@pytest.mark.parametrize(
    ("train", "settings"),
    [
        ([(torch.ones(2), SECRET)], {}),
        ([(torch.ones(2), NUMBER)], {}),
        ([(torch.ones(2), torch.tensor([NUMBER, NUMBER]))], {}),
        ([(np.array([SECRET, "b"]), 0)], {}),
        ([(torch.tensor([NUMBER, float("nan")]), 0)], {}),
        ([(torch.ones(2), 0), (torch.ones(NUMBER), 1)], {}),
        ([(torch.ones(2), 0, SECRET)], {}),
        (PAIRS, {"holders": [SECRET, "b"], "clients": ["a", "b"]}),
        (PAIRS, {"holders": [0, NUMBER], "clients": ["a", "b"]}),
        (PAIRS, {"units": [[SECRET], ["b"]], "unit": "patient"}),
        (PAIRS, {"budgets": [SECRET, "b"]}),
        (PAIRS, {"budgets": [1.0, -NUMBER]}),
    ],
)
def test_torch_data_sets(train, settings):
    assert "must" in refusal(from_torch, train, PAIRS, name="mine", classes=["x", "y"], **settings)


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        json.dumps({SECRET: 1, "clients": ["a"], "records": [[0]]}),
        json.dumps({"clients": ["a"], "records": [[SECRET]]}),
        json.dumps([SECRET]),
    ],
    ids=["no JSON", "an unknown key", "text for numbers", "a list"],
)
def test_partitions(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    assert "p.json" in refusal(Partition.load, tmp_path / "p.json")


def test_published_formats_read_from_a_wrong_file(tmp_path):
    path = tmp_path / "file"
    path.write_text(SECRET)
    refusal(formats.read_idx, path, dimensions=1)
    refusal(formats.read_cifar_pickle, path, records=1, label_keys=["labels"])
    refusal(formats.read_image_rows, path, records=1)
    refusal(formats.read_json_labels, path, records=1)
    path.write_text(json.dumps([SECRET]))
    refusal(formats.read_json_labels, path, records=1)
    path.write_bytes(pickle.dumps({SECRET: SECRET}))
    refusal(formats.read_cifar_pickle, path, records=1, label_keys=["labels"])
    # Pickle's protocol 0 names a function to be called in plain text.
    path.write_bytes(f"c{SECRET}\n{SECRET}\n.".encode())
    refusal(formats.read_cifar_pickle, path, records=1, label_keys=["labels"])
    path.with_suffix(".zip").write_text(f"PK\x03\x04{SECRET}")
    with pytest.raises(PacdpError) as refused, open_files(path.with_suffix(".zip"), [SECRET]):
        pass
    assert SECRET not in str(refused.value)


def test_an_overlap_has_no_number(tmp_path):
    for name, rows in (("private", 20), ("few", 1), ("many", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(good(rows=rows) + f"{NUMBER},{NUMBER},0\n" * 5)
    private = read_folder(tmp_path / "private", classes=2)
    said = {
        refusal(refuse_overlap, read_folder(tmp_path / name, classes=2), private).replace(name, "")
        for name in ("few", "many")
    }
    assert said == {"proxy : shares records with private data, must share none"}


@pytest.mark.parametrize("option", [[], ["--debug"]])
def test_the_command_line_keeps_them_too(tmp_path, capsys, monkeypatch, option):
    (tmp_path / "a.csv").write_text(f"age,label\n1,0\n{SECRET},1\n")
    monkeypatch.setattr(sys, "argv", ["pacdp", *option, "data", "check", str(tmp_path)])
    if option:
        refusal(main)
        return
    with pytest.raises(SystemExit) as end:
        main()
    out, error = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert error == (
        f"pacdp: {tmp_path / 'a.csv'}, line 3: age must be a number within ±3.4e+38 "
        "(identifiers belong in a column unit)\n"
    )


def test_public_data_are_refused_in_the_same_words():
    message = refusal(refuse_overlap, load_dataset("heart-full"), load_dataset("heart"))
    assert message == "proxy heart-full: shares records with private data, must share none"
