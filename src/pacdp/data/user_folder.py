"""A user's own data: a folder with one file for each client, or any torch data set.

A folder holds ``NAME.csv`` or ``NAME.npz`` for each client NAME, and may hold:

- ``test/`` with files of the same form, the server's test records; otherwise a stated share of
  each client's records, drawn by class with a seed, is set aside;
- ``ranges.toml``, published ranges of CSV columns: ``age = [30, 74]`` becomes [−1, 1], cut off at
  both ends. Nothing is ever scaled by the records themselves.

A CSV file has a header and commas, in UTF-8. The column ``label`` is the class number (or the
value, for regression), a column ``unit`` names whom a record belongs to, and every other column is
a number. Columns go by their names, whatever their order. An .npz file has the arrays ``features``,
``labels`` and, if wanted, ``units``.

The records are private. A message says which file, line and column is wrong and what is allowed;
it never shows the content of a cell, or an error of another library that could quote it.
"""

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pacdp.data.records import (
    Array,
    Dataset,
    Provenance,
    Records,
    digest_rows,
    draw_stratified,
    require_finite,
)
from pacdp.errors import DataError, InputError
from pacdp.tasks import Regression, Task, load_task, task_for_classes
from pacdp.validation import describe_type, locate_record, meant

TEST_SHARE = 0.2
# Files that may lie beside those of the clients.
BESIDE = (".toml", ".md", ".txt", ".json")
Ranges = Mapping[str, tuple[float, float]]
# Lines with their cells.
Rows = list[tuple[int, list[str]]]
# Features and labels are trained on in single precision.
LARGEST_NUMBER = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class _File:
    """What one client's file holds."""

    path: Path
    features: Array
    labels: Array
    units: Array | None
    """Names as they stand there."""
    columns: tuple[str, ...] | None
    keys: Array
    """Of the numbers as they stand there, before any scaling."""
    lines: Sequence[int] | None = None
    """The line of each record, for a CSV file."""


def read_folder(
    folder: Path,
    *,
    classes: int | Sequence[str] | None = None,
    task: Any = None,
    unit: str | None = None,
    test_share: float = TEST_SHARE,
    split: int = 0,
) -> Dataset:
    """The data set in a folder of files, one for each client.

    ``classes`` counts or names the classes, 0 means regression; without it the labels say. Any
    other task is given as ``task``, or as it is stored (:func:`~pacdp.tasks.load_task`).
    ``unit`` is the word for what the unit column stands for; that column may also have this name.

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
    ranges = _ranges(folder / "ranges.toml")
    word = "unit" if unit is None else unit
    files = _read_all(folder, ranges, word, None)
    if unit is not None and files[0].units is None:
        raise DataError(f"{folder}: no file has a column unit or {unit}, must have one for ε")
    clients = tuple(file.path.stem for file in files)
    task = _task(files, classes) if task is None else load_task(task)
    inside = folder / "test"
    tested = _read_all(inside, ranges, word, files[0]) if inside.is_dir() else []
    # One numbering for both, so that a number means one person.
    people = np.unique(np.concatenate([_people(file) for file in [*files, *tested]]))
    records = _joined(files, clients, task, people)
    if tested:
        unknown = [file.path for file in tested if file.path.stem not in clients]
        if unknown:
            raise DataError(f"{unknown[0]}: {unknown[0].stem} is no client of {folder}")
        held = _joined(tested, clients, task, people)
        _refuse_shared(inside, records, held, word)
    else:
        mask = _set_aside(records, task, test_share, split)
        records, held = records.take(~mask), records.take(mask)
    if not len(held):
        raise DataError(f"{folder}: has too few records to set any aside for tests")
    return Dataset(
        name=folder.name,
        train=records,
        test=held,
        task=task,
        clients=clients,
        unit=word if records.units is not None else "record",
        provenance=Provenance(source=f"the user's folder {folder.name}", licence="the user's own"),
    )


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
) -> Dataset:
    """A data set from two torch data sets of (features, label) pairs.

    ``holders`` gives each training record's client, ``units`` what it belongs to.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> pairs = TensorDataset(torch.randn(6, 4), torch.arange(6) % 2)
    >>> from_torch(pairs, pairs, name="mine", classes=["no", "yes"]).shape
    (4,)
    """
    task = task_for_classes(classes)
    features, labels = _collected(f"{name}, train records", train, task)
    held, held_labels = _collected(f"{name}, test records", test, task)
    return Dataset(
        name=name,
        train=Records(
            features=features,
            labels=labels,
            clients=None if holders is None else _whole("holders", holders),
            units=None if units is None else _numbered(np.asarray(units)),
        ),
        test=Records(features=held, labels=held_labels),
        task=task,
        clients=tuple(clients),
        unit="record" if units is None else unit,
        provenance=Provenance(source=f"the user's data set {name}", licence="the user's own"),
    )


def _collected(where: str, pairs: Any, task: Task) -> tuple[Array, Array]:
    if not len(pairs):
        raise InputError(f"{where}: are none, must be at least one")
    features, labels = [], np.empty(len(pairs))
    for number in range(len(pairs)):
        pair = pairs[number]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"{where}, record {number}: must be a pair of features and a label")
        features.append(np.asarray(pair[0]))
        try:
            labels[number] = float(pair[1])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            # The error of a failed conversion quotes the label.
            raise InputError(f"{where}, record {number}: label must be one number") from None
    if len({value.shape for value in features}) > 1:
        raise InputError(f"{where}: have features of different shapes, must all be alike")
    return np.stack(features), _typed(where, labels, task)


def _whole(name: str, values: Sequence[int]) -> Any:
    """Values that must be whole numbers, as an array."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name}: are {describe_type(array)} of shape {array.shape}, "
            "must be a whole number for each record"
        )
    return array.astype(np.int64)


def _read_all(folder: Path, ranges: Ranges, unit: str, like: _File | None) -> list[_File]:
    """Every client's file; all must have the columns of the first."""
    files: list[_File] = []
    for path in _client_files(folder):
        first = like or (files[0] if files else None)
        columns = None if first is None else first.columns
        if path.suffix.lower() == ".csv":
            file = _read_csv(path, ranges, unit, columns)
        elif ranges:
            raise DataError(f"{path}: has no columns to scale by ranges.toml; scale it before")
        else:
            file = _read_npz(path)
        if not len(file.features):
            raise DataError(f"{path}: has no records, must have at least one")
        if first is not None and file.features.shape[1:] != first.features.shape[1:]:
            raise DataError(
                f"{path}: records have shape {file.features.shape[1:]}, must be "
                f"{first.features.shape[1:]} as in {first.path.name}"
            )
        if first is not None and (file.units is None) != (first.units is None):
            raise DataError(f"{path}: units must be given in every file or in none")
        files.append(file)
    return files


def _client_files(folder: Path) -> list[Path]:
    paths = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir() or path.suffix.lower() in BESIDE:
            continue
        if path.suffix.lower() not in (".csv", ".npz"):
            raise DataError(f"{path}: is neither .csv nor .npz, which a client's file must be")
        paths.append(path)
    names = [path.stem for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{folder}: client {twice} has two files, must have one")
    if not paths:
        raise DataError(f"{folder}: holds no .csv or .npz file, must hold one for each client")
    return paths


def _read_csv(path: Path, ranges: Ranges, unit: str, like: tuple[str, ...] | None) -> _File:
    header, rows = _table(path)
    named = "unit" if "unit" in header else unit
    names = tuple(name for name in header if name not in ("label", named))
    if not names:
        raise DataError(f"{path}: has no features, must have a column beside label and unit")
    if like is not None and set(names) != set(like):
        odd = sorted(set(names) ^ set(like))[0]
        has = "has a column" if odd in names else "lacks the column"
        raise DataError(f"{path}: {has} {odd}, unlike the other files; columns must be the same")
    names = names if like is None else like
    stray = [name for name in ranges if name not in names]
    if stray:
        near = meant(stray[0], names)
        raise DataError(f"ranges.toml: {stray[0]} is no column of {path}; {near}must be one")
    raw = [_numbers(path, name, _column(header, rows, name)) for name in names]
    people = _column(header, rows, named) if named in header else None
    for line, name in people or ():
        if not name.strip():
            raise DataError(f"{path}, line {line}: {named} is empty, must name whom it belongs to")
    scaled = [_scaled(values, ranges.get(n)) for n, values in zip(names, raw, strict=True)]
    return _File(
        path=path,
        features=np.stack(scaled, axis=1).astype(np.float32),
        labels=_numbers(path, "label", _column(header, rows, "label")),
        units=None if people is None else np.array([name.strip() for _, name in people]),
        columns=names,
        keys=digest_rows(np.stack(raw, axis=1)),
        lines=[line for line, _ in rows],
    )


def _column(header: list[str], rows: Rows, name: str) -> list[tuple[int, str]]:
    """The line and the content of each cell of a column."""
    place = header.index(name)
    return [(line, row[place]) for line, row in rows]


def _table(path: Path) -> tuple[list[str], Rows]:
    """Header and rows of a CSV file, all of one length, with the line each ends at."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            lines = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8, must be saved as UTF-8") from None
    except csv.Error:
        raise DataError(
            f"{path}, line {reader.line_num}: is not CSV, must have cells separated by commas"
        ) from None
    if not lines:
        raise DataError(f"{path}: is empty, must have a header and a line for each record")
    header, rows = [name.strip() for name in lines[0][1]], lines[1:]
    # Without that column the first line may be a record, not a header, and must not be shown.
    if "label" not in header:
        why = "; cells must be separated by commas" if ";" in header[0] else ""
        raise DataError(
            f"{path}: has no column label; its first line must be a header with label{why}"
        )
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: has two columns {twice}, must have one")
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {line}: must have {len(header)} cells, as many as the header"
            )
    return header, rows


def _numbers(path: Path, column: str, cells: Sequence[tuple[int, str]]) -> Array:
    values = np.empty(len(cells))
    for number, (line, cell) in enumerate(cells):
        try:
            values[number] = float("no" if "_" in cell else cell)
            if not abs(values[number]) <= LARGEST_NUMBER:
                raise ValueError
        except ValueError:
            hint = "" if column == "label" else " (names go in a column unit)"
            raise DataError(
                f"{path}, line {line}: {column} must be a number within ±{LARGEST_NUMBER:.3g}{hint}"
            ) from None
    return values


def _numbered(names: Array) -> Any:
    """Any names as whole numbers; equal names get equal numbers."""
    if names.ndim != 1 or names.dtype.kind not in "iuUS":
        raise InputError(
            f"units: are {describe_type(names)} of shape {names.shape}, "
            "must be a name or a whole number for each record"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _scaled(values: Array, limits: tuple[float, float] | None) -> Array:
    if limits is None:
        return values
    low, high = limits
    return np.clip(2 * (values - low) / (high - low) - 1, -1, 1)


def _read_npz(path: Path) -> _File:
    try:
        # NumPy leaves a file open that it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            names = set(arrays.files)
            if not {"features", "labels"} <= names:
                raise DataError(
                    f"{path}: holds {', '.join(sorted(names))}; must hold features and labels"
                )
            features, labels = arrays["features"], arrays["labels"]
            units = arrays["units"] if "units" in names else None
    except (DataError, PermissionError):
        raise
    except Exception:  # a damaged archive can fail in any way, and the error may quote its bytes
        raise DataError(f"{path}: is no .npz file of plain arrays") from None
    if units is not None and (units.ndim != 1 or units.dtype.kind not in "iuUS"):
        raise DataError(
            f"{path}: units are {describe_type(units)} of shape {units.shape}, "
            "must be a name or a whole number for each record"
        )
    for name, values in (("labels", labels), ("units", units)):
        if values is not None and values.shape != features.shape[:1]:
            raise DataError(f"{path}: {name} have shape {values.shape}, must be one a record")
    require_finite(str(path), features)
    Regression().require_labels(str(path), labels)
    people = None if units is None else units.astype(str)
    return _File(path, features, labels, people, None, digest_rows(features))


def _ranges(path: Path) -> Ranges:
    if not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no TOML file ({error})") from error
    made = {}
    for name, limits in values.items():
        try:
            if any(type(limit) not in (int, float) for limit in limits):
                raise TypeError
            low, high = map(float, limits)
            if not -np.inf < low < high < np.inf:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{path}: {name}: must be [low, high] with low < high") from None
        made[name] = (low, high)
    return made


def _task(files: Sequence[_File], classes: int | Sequence[str] | None) -> Task:
    """Classification or regression; labels decide only where they are unambiguous."""
    if classes is not None:
        return task_for_classes(classes)
    labels = np.concatenate([file.labels for file in files])
    whole = labels == np.floor(labels)
    if 2 * whole.sum() < len(labels):
        return Regression()
    say = "or say how many with classes (0 for regression)"
    for file in files:
        odd = np.flatnonzero((file.labels != np.floor(file.labels)) | (file.labels < 0))
        if len(odd):
            place = locate_record(str(file.path), int(odd[0]), file.lines)
            raise DataError(
                f"{place}: label must be a class number 0, 1, ... as most labels are, {say}"
            )
    found = np.unique(labels)
    if len(found) != int(labels.max()) + 1:
        raise DataError(
            f"{files[0].path.parent}: labels skip a number; "
            f"classes must be numbered 0, 1, ... without gaps, {say}"
        )
    return task_for_classes(len(found))


def _joined(files: Sequence[_File], clients: Sequence[str], task: Task, people: Array) -> Records:
    """All clients' records in one, each still with its holder and its own units."""
    labels = [_typed(str(file.path), file.labels, task, file.lines) for file in files]
    numbers = np.array([clients.index(file.path.stem) for file in files], np.int64)
    names = np.concatenate([_people(file) for file in files])
    return Records(
        features=np.concatenate([file.features for file in files]),
        labels=np.concatenate(labels),
        clients=np.repeat(numbers, [len(file.features) for file in files]),
        units=None if files[0].units is None else np.searchsorted(people, names),
        keys=np.concatenate([file.keys for file in files]),
    )


def _people(file: _File) -> Array:
    """A name for each record's unit that no other client's unit has."""
    if file.units is None:
        return np.array([], str)
    return np.array([f"{file.path.stem}/{name}" for name in file.units])


def _refuse_shared(where: Path, train: Records, test: Records, unit: str) -> None:
    """Refuse test records that are training records, and units in both.

    The message does not say how many or which ones, since that depends on private records.
    """
    known = {bytes(key) for key in train.identities()}
    if any(bytes(key) in known for key in test.identities()):
        raise DataError(f"{where}: shares records with training, must share none")
    if (
        train.units is not None
        and test.units is not None
        and np.isin(test.units, train.units).any()
    ):
        raise DataError(f"{where}: has a {unit} that is also in training, must be in one of them")


def _set_aside(records: Records, task: Task, share: float, split: int) -> Array:
    """A mask of test records: by client and class, and never only a part of a unit."""
    if not 0 < share < 1:
        raise InputError(f"test_share = {share:g}: must be a number in (0, 1)")
    assert records.clients is not None
    units = np.arange(len(records)) if records.units is None else records.units
    _, first, belongs = np.unique(units, return_index=True, return_inverse=True)
    groups = np.stack([records.clients[first], task.groups(records.labels[first])], axis=1)
    return draw_stratified(np.unique(groups, axis=0, return_inverse=True)[1], share, split)[belongs]


def _typed(where: str, labels: Array, task: Task, lines: Sequence[int] | None = None) -> Array:
    """Labels in the type of the task, after checking that they are valid."""
    task.require_labels(where, labels, lines)
    return labels.astype(task.label_dtype)
