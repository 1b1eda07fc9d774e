"""Data supplied by the user: a folder with one file for each client, or a torch data set.

A folder holds ``NAME.csv`` or ``NAME.npz`` for each client NAME, and may hold:

- ``test/`` with files of the same form, the server's test records; otherwise a fraction of
  each client's records is held out, stratified by class and drawn with a seed;
- ``ranges.toml``, published ranges of CSV columns: ``age = [30, 74]`` is scaled to [−1, 1], and
  values outside are clipped. Nothing is ever scaled by statistics of the records.

A CSV file has a header and commas, in UTF-8. The column ``label`` is the class number (or the
value, for regression), a column ``unit`` names the unit that a record belongs to, a column
``budget`` is the ε of the record, and every other column is a number. Columns are matched by name.
An .npz file has the arrays ``features``, ``labels`` and, optionally, ``units`` and ``budgets``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pacdp.data.client_files import (
    UNIT_KINDS,
    UNIT_NAMES,
    ClientFile,
    Ranges,
    read_csv,
    read_npz,
    read_ranges,
)
from pacdp.data.records import (
    Array,
    Dataset,
    Provenance,
    Records,
    draw_stratified,
    require_budgets,
    split_dataset,
)
from pacdp.errors import DataError, InputError
from pacdp.tasks import Regression, Task, load_task, task_for_classes
from pacdp.validation import locate_record, require_column

TEST_SHARE = 0.2
# Endings of files that may lie beside those of the clients, and are ignored.
IGNORED = (".toml", ".md", ".txt", ".json")


def read_folder(
    folder: Path,
    *,
    classes: int | Sequence[str] | None = None,
    task: Any = None,
    unit: str | None = None,
    test_share: float = TEST_SHARE,
    split: int = 0,
) -> Dataset:
    """Read a folder with one file for each client.

    ``classes`` is the number or the names of the classes, 0 for regression; by default it is
    inferred from the labels. Any other task is given as ``task``, itself or in its stored form
    (:func:`~pacdp.tasks.load_task`). ``unit`` names the unit of privacy, and may also be the name
    of the unit column. The column of budgets is always ``budget``.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("north", "south"):
    ...     written = (folder / f"{name}.csv").write_text(
    ...         "unit,age,label\\n" + "".join(f"p{n // 2},{n},{n // 2 % 2}\\n" for n in range(40))
    ...     )
    >>> data = read_folder(folder, unit="patient")
    >>> data.clients, data.unit, data.shape
    (('north', 'south'), 'patient', (1,))
    """
    ranges = read_ranges(folder / "ranges.toml")
    unit_column = "unit" if unit is None else unit
    files = _read_client_files(folder, ranges, unit_column, None)
    if unit is not None and files[0].units is None:
        raise DataError(
            f"{folder}: no file has a column 'unit' or '{unit}'; add one, or do not name a unit"
        )
    clients = tuple(file.client for file in files)
    task = _infer_task(files, classes) if task is None else load_task(task)
    test_folder = folder / "test"
    test_files = []
    if test_folder.is_dir():
        test_files = _read_client_files(test_folder, ranges, unit_column, files[0])
    # Training and test units are numbered together, so that a number means the same unit in both.
    units = np.unique(np.concatenate([file.unit_names() for file in [*files, *test_files]]))
    records = _join(files, clients, task, units)
    description: dict[str, Any] = {
        "name": folder.name,
        "task": task,
        "clients": clients,
        "unit": unit_column if records.units is not None else "record",
        "provenance": _user_provenance(f"folder {folder.name}"),
    }
    if test_files:
        unknown = [file.path for file in test_files if file.client not in clients]
        if unknown:
            raise DataError(
                f"{unknown[0]}: client {unknown[0].stem} has no training file; add one, "
                "or remove this file"
            )
        test = _join(test_files, clients, task, units)
        _refuse_shared(test_folder, records, test, unit_column)
        return Dataset(train=records, test=test, **description)
    mask = _draw_test_mask(records, task, test_share, split)
    if not mask.any():
        raise DataError(
            f"{folder}: has too few records to hold out test records; add a folder test/"
        )
    return split_dataset(records, mask, **description)


def read_client_file(path: Path, *, task: Task, unit: str = "record") -> Records:
    """Read the file of a single client, all of whose records are for training.

    A ``ranges.toml`` beside it scales the columns of a CSV file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "north.csv"
    >>> written = path.write_text("age,label\\n50,1\\n60,0\\n")
    >>> read_client_file(path, task=load_task(2)).labels.tolist()
    [1, 0]
    """
    if not path.is_file():
        raise DataError(f"{path}: cannot be read: there is no such file")
    column, ranges = "unit" if unit == "record" else unit, read_ranges(path.parent / "ranges.toml")
    try:
        file = _read_client_file(path, ranges, column, None)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if unit == "record" and file.units is not None:
        raise DataError(f"{path}: has units, but ε is for a record")
    if unit != "record" and file.units is None:
        raise DataError(f"{path}: has no column 'unit' or '{unit}', but ε is for a {unit}")
    return _join([file], [file.client], task, np.unique(file.unit_names()))


def _user_provenance(what: str) -> Provenance:
    return Provenance(source=f"{what}, supplied by the user", licence="licence not stated")


def from_torch(
    train: Any,
    test: Any,
    *,
    name: str,
    classes: Sequence[str],
    clients: Sequence[str] = (),
    holders: Sequence[int] | None = None,
    units: Sequence[int] | None = None,
    unit: str = "unit",
    budgets: Sequence[float] | None = None,
) -> Dataset:
    """Make a data set from two torch data sets of (features, label) pairs.

    ``holders`` is the client number of each training record, ``units`` its unit and ``budgets``
    its ε.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> pairs = TensorDataset(torch.randn(6, 4), torch.arange(6) % 2)
    >>> from_torch(pairs, pairs, name="mine", classes=["no", "yes"]).shape
    (4,)
    """
    holder_numbers = None if holders is None else np.asarray(holders)
    if holder_numbers is not None:
        require_column("holders:", holder_numbers, "iu", "a whole number for each record")
    unit_names = None if units is None else np.asarray(units)
    if unit_names is not None:
        require_column("units:", unit_names, UNIT_KINDS, UNIT_NAMES)
    task = task_for_classes(classes)
    features, labels = _collect(f"{name}, train records", train, task)
    test_features, test_labels = _collect(f"{name}, test records", test, task)
    return Dataset(
        name=name,
        train=Records(
            features=features,
            labels=labels,
            clients=None if holder_numbers is None else holder_numbers.astype(np.int64),
            units=None if unit_names is None else np.unique(unit_names, return_inverse=True)[1],
            budgets=None if budgets is None else require_budgets(name, np.asarray(budgets)),
        ),
        test=Records(features=test_features, labels=test_labels),
        task=task,
        clients=tuple(clients),
        unit="record" if units is None else unit,
        provenance=_user_provenance(f"data set {name}"),
    )


def _collect(where: str, pairs: Any, task: Task) -> tuple[Array, Array]:
    if not len(pairs):
        raise InputError(f"{where}: there are none, must be at least one")
    features, labels = [], np.empty(len(pairs))
    for number in range(len(pairs)):
        pair = pairs[number]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"{where}, record {number}: must be a pair of features and a label")
        features.append(np.asarray(pair[0]))
        try:
            labels[number] = float(pair[1])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            # The original error would quote the label.
            raise InputError(f"{where}, record {number}: label must be a number") from None
    if len({value.shape for value in features}) > 1:
        raise InputError(f"{where}: have features of different shapes, must have the same shape")
    return np.stack(features), _convert_labels(where, labels, task)


def _read_client_files(
    folder: Path, ranges: Ranges, unit: str, like: ClientFile | None
) -> list[ClientFile]:
    """Read every client's file; all must match ``like``, by default the first one."""
    files: list[ClientFile] = []
    for path in _list_client_files(folder):
        first = like or (files[0] if files else None)
        file = _read_client_file(path, ranges, unit, first)
        if first is not None and file.features.shape[1:] != first.features.shape[1:]:
            raise DataError(
                f"{path}: records have shape {file.features.shape[1:]}, must be "
                f"{first.features.shape[1:]} as in {first.path.name}"
            )
        if first is not None and (file.units is None) != (first.units is None):
            raise DataError(f"{path}: units must be given in every file or in none")
        # Compared within a folder: test records may have budgets or not, as no ε covers them.
        if files and (file.budgets is None) != (files[0].budgets is None):
            raise DataError(f"{path}: budgets must be given in every file or in none")
        files.append(file)
    return files


def _read_client_file(path: Path, ranges: Ranges, unit: str, like: ClientFile | None) -> ClientFile:
    if path.suffix.lower() == ".csv":
        file = read_csv(path, ranges, unit, None if like is None else like.columns)
    elif ranges:
        raise DataError(
            f"{path}: .npz files cannot be scaled by ranges.toml; scale the values yourself "
            "and remove ranges.toml"
        )
    else:
        file = read_npz(path)
    if not len(file.features):
        raise DataError(f"{path}: has no records, must have at least one")
    return file


def _list_client_files(folder: Path) -> list[Path]:
    paths = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir() or path.suffix.lower() in IGNORED:
            continue
        if path.suffix.lower() not in (".csv", ".npz"):
            raise DataError(f"{path}: is neither .csv nor .npz, which a client's file must be")
        paths.append(path)
    names = [path.stem for path in paths]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{folder}: client {repeated} has two files, must have one")
    if not paths:
        raise DataError(f"{folder}: holds no .csv or .npz file, must hold one for each client")
    return paths


def _infer_task(files: Sequence[ClientFile], classes: int | Sequence[str] | None) -> Task:
    """Return classification or regression, inferred from the labels if they are unambiguous."""
    if classes is not None:
        return task_for_classes(classes)
    labels = np.concatenate([file.labels for file in files])
    whole = labels == np.floor(labels)
    if 2 * whole.sum() < len(labels):
        return Regression()
    advice = "or set classes to their number (0 for regression)"
    for file in files:
        odd = np.flatnonzero((file.labels != np.floor(file.labels)) | (file.labels < 0))
        if len(odd):
            place = locate_record(str(file.path), int(odd[0]), file.lines)
            raise DataError(
                f"{place}: label must be a class number 0, 1, ... as most labels are, {advice}"
            )
    present = np.unique(labels)
    if len(present) != int(labels.max()) + 1:
        raise DataError(
            f"{files[0].path.parent}: labels skip a number; "
            f"classes must be numbered 0, 1, ... without gaps, {advice}"
        )
    return task_for_classes(len(present))


def _join(files: Sequence[ClientFile], clients: Sequence[str], task: Task, units: Array) -> Records:
    """Join the records of all clients; ``units`` are the sorted names of all units."""
    labels = [_convert_labels(str(f.path), f.labels, task, f.lines) for f in files]
    numbers = np.array([clients.index(file.client) for file in files], np.int64)
    names = np.concatenate([file.unit_names() for file in files])
    budgets = [file.budgets for file in files if file.budgets is not None]
    return Records(
        features=np.concatenate([file.features for file in files]),
        labels=np.concatenate(labels),
        clients=np.repeat(numbers, [len(file.features) for file in files]),
        units=None if files[0].units is None else np.searchsorted(units, names),
        keys=np.concatenate([file.keys for file in files]),
        budgets=np.concatenate(budgets) if budgets else None,
    )


def _refuse_shared(where: Path, train: Records, test: Records, unit: str) -> None:
    """Raise DataError if test records or units are also in the training files.

    The error does not say how many or which ones, because that depends on private records.
    """
    if np.isin(test.identities(), train.identities()).any():
        raise DataError(
            f"{where}: contains records that are also in the training files; remove them"
        )
    # Either both have units, or neither has.
    if train.units is not None and np.isin(test.unit_numbers(), train.units).any():
        raise DataError(
            f"{where}: contains a {unit} that is also in the training files; "
            "keep its records together"
        )


def _draw_test_mask(records: Records, task: Task, share: float, split: int) -> Array:
    """Draw test records, stratified by client and class; units are kept together."""
    if not 0 < share < 1:
        raise InputError(f"test_share = {share:g}: must be a number in (0, 1)")
    assert records.clients is not None
    first, unit_of_record = records.group_by_unit()
    groups = np.stack([records.clients[first], task.strata(records.labels[first])], axis=1)
    strata = np.unique(groups, axis=0, return_inverse=True)[1]
    return draw_stratified(strata, share, split)[unit_of_record]


def _convert_labels(
    where: str, labels: Array, task: Task, lines: Sequence[int] | None = None
) -> Array:
    """Check labels and return them in the type of the task."""
    task.require_labels(where, labels, lines)
    return labels.astype(task.label_dtype)
