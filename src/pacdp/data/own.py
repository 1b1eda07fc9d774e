"""A user's own data: a folder with one file for each client, or any torch data set.

A folder holds ``NAME.csv`` or ``NAME.npz`` for each client NAME, and may hold:

- ``test/`` with files of the same form, the server's test records; otherwise a stated share of
  each client's records, drawn by class with a seed, is set aside;
- ``ranges.toml``, published ranges of CSV columns: ``age = [30, 74]`` becomes [−1, 1], cut off at
  both ends. Nothing is ever scaled by the records themselves.

A CSV file has a header. The column ``label`` is the class number (or the value, for regression), a
column ``unit`` names whom a record belongs to, and every other column is a number. An .npz file has
the arrays ``features``, ``labels`` and, if wanted, ``units``.
"""

import csv
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pacdp.data.records import (
    Array,
    Dataset,
    Provenance,
    Records,
    require_finite,
    require_labels,
    stratified,
)
from pacdp.errors import DataError, InputError

TEST_SHARE = 0.2
Ranges = Mapping[str, tuple[float, float]]


def read_folder(
    folder: Path,
    *,
    classes: int | Sequence[str] | None = None,
    unit: str = "unit",
    test_share: float = TEST_SHARE,
    split: int = 0,
) -> Dataset:
    """The data set in a folder of files, one for each client.

    ``classes`` counts or names the classes, 0 means regression; by default whole labels are
    classes, as many as the largest says. ``unit`` is the word for what a unit column stands for.

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
    paths = _client_files(folder)
    clients = tuple(path.stem for path in paths)
    parts = [_read(path, ranges) for path in paths]
    kinds = _classes(parts, classes)
    for path, part in zip(paths, parts, strict=True):
        require_labels(str(path), part.labels, len(kinds))
    records = _joined(parts, paths)
    if (folder / "test").is_dir():
        test_paths = _client_files(folder / "test")
        unknown = sorted({path.stem for path in test_paths} - set(clients))
        if unknown:
            raise DataError(f"{folder / 'test'}: {unknown[0]} is no client of {folder}")
        held = _joined(
            [_read(path, ranges) for path in test_paths],
            test_paths,
            [clients.index(path.stem) for path in test_paths],
        )
    else:
        mask = _whole_units(records, test_share, split, by_label=bool(kinds))
        records, held = records.take(~mask), records.take(mask)
    return Dataset(
        name=folder.name,
        train=_typed(f"{folder}, train records", records, kinds),
        test=_typed(f"{folder}, test records", held, kinds),
        classes=kinds,
        clients=clients,
        unit=unit if records.units is not None else "record",
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
    made = [_collected(f"{name}, train", train), _collected(f"{name}, test", test)]
    records = Records(
        features=made[0][0],
        labels=made[0][1],
        clients=None if holders is None else np.asarray(holders, np.int64),
        units=None if units is None else np.asarray(units, np.int64),
    )
    held = Records(features=made[1][0], labels=made[1][1])
    return Dataset(
        name=name,
        train=_typed(f"{name}, train records", records, classes),
        test=_typed(f"{name}, test records", held, classes),
        classes=tuple(classes),
        clients=tuple(clients),
        unit="record" if units is None else unit,
        provenance=Provenance(source=f"the user's data set {name}", licence="the user's own"),
    )


def _collected(where: str, pairs: Any) -> tuple[Array, Array]:
    if not len(pairs):
        raise InputError(f"{where}: is empty, must have at least one record")
    features, labels = zip(*(pairs[n] for n in range(len(pairs))), strict=True)
    shapes = {np.shape(value) for value in features}
    if len(shapes) > 1:
        raise InputError(f"{where}: records have shapes {sorted(shapes)}, must all be alike")
    return np.stack([np.asarray(value) for value in features]), np.asarray([*map(float, labels)])


def _client_files(folder: Path) -> list[Path]:
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".csv", ".npz") and p.is_file())
    names = [path.stem for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{folder}: client {twice} has two files, must have one")
    if not paths:
        raise DataError(f"{folder}: holds no .csv or .npz file, must hold one for each client")
    return paths


def _read(path: Path, ranges: Ranges) -> Records:
    records = _read_csv(path, ranges) if path.suffix == ".csv" else _read_npz(path)
    if not len(records):
        raise DataError(f"{path}: has no records, must have at least one")
    require_finite(str(path), records.features)
    return records


def _read_csv(path: Path, ranges: Ranges) -> Records:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            header, *rows = [row for row in csv.reader(stream) if row]
    except (ValueError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no CSV file with a header ({error})") from error
    header = [name.strip() for name in header]
    if "label" not in header or len(set(header)) != len(header):
        raise DataError(f"{path}: has columns {', '.join(header)}; must have one named label")
    names = [name for name in header if name not in ("label", "unit")]
    if not names:
        raise DataError(f"{path}: has no features, must have a column beside label and unit")
    columns: dict[str, list[str]] = {name: [] for name in header}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: has {len(row)} cells, must have {len(header)}")
        for name, cell in zip(header, row, strict=True):
            columns[name].append(cell)
    features = [_scaled(_numbers(path, n, columns[n]), ranges.get(n)) for n in names]
    return Records(
        features=np.stack(features, axis=1).astype(np.float32),
        labels=_numbers(path, "label", columns["label"]),
        units=_numbered(columns["unit"]) if "unit" in columns else None,
    )


def _numbers(path: Path, column: str, cells: Sequence[str]) -> Array:
    values = np.empty(len(cells))
    for number, cell in enumerate(cells):
        try:
            values[number] = float(cell)
        except ValueError:
            raise DataError(
                f"{path}, line {number + 2}: {column} is {cell.strip()!r}, must be a number"
            ) from None
    return values


def _numbered(names: Sequence[str] | Array) -> Any:
    """Any names as whole numbers; equal names get equal numbers."""
    return np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int64)


def _scaled(values: Array, limits: tuple[float, float] | None) -> Array:
    if limits is None:
        return values
    low, high = limits
    return np.clip(2 * (values - low) / (high - low) - 1, -1, 1)


def _read_npz(path: Path) -> Records:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = set(arrays.files)
            if not {"features", "labels"} <= names:
                raise DataError(
                    f"{path}: holds {', '.join(sorted(names))}; must hold features and labels"
                )
            units = _numbered(arrays["units"]) if "units" in names else None
            return Records(features=arrays["features"], labels=arrays["labels"], units=units)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is no .npz file of plain arrays ({error})") from error


def _ranges(path: Path) -> Ranges:
    if not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no TOML file ({error})") from error
    for name, limits in values.items():
        pair = isinstance(limits, list) and len(limits) == 2
        if (
            not pair
            or not all(isinstance(x, int | float) for x in limits)
            or limits[0] >= limits[1]
        ):
            raise DataError(f"{path}: {name} = {limits}: must be [low, high] with low < high")
    return {name: (float(low), float(high)) for name, (low, high) in values.items()}


def _classes(parts: Sequence[Records], wanted: int | Sequence[str] | None) -> tuple[str, ...]:
    if wanted is None:
        labels = np.concatenate([part.labels for part in parts])
        whole = bool(np.all(labels == np.floor(labels)) and labels.min() >= 0)
        wanted = int(labels.max()) + 1 if whole else 0
    if isinstance(wanted, int):
        return tuple(str(number) for number in range(wanted))
    return tuple(wanted)


def _joined(
    parts: Sequence[Records], paths: Sequence[Path], clients: Sequence[int] | None = None
) -> Records:
    """All clients' records in one, each still with its holder and its own units."""
    for path, part in zip(paths, parts, strict=True):
        if part.features.shape[1:] != parts[0].features.shape[1:]:
            raise DataError(
                f"{path}: records have shape {part.features.shape[1:]}, "
                f"must be {parts[0].features.shape[1:]} as in {paths[0].name}"
            )
        if (part.units is None) != (parts[0].units is None):
            raise DataError(f"{path}: units must be given in every file or in none")
    units, offset = [], 0
    for part in parts:
        if part.units is not None:
            units.append(part.units + offset)
            offset += int(part.units.max()) + 1
    numbers = range(len(parts)) if clients is None else clients
    return Records(
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        clients=np.repeat(np.array(numbers, np.int64), [len(part) for part in parts]),
        units=np.concatenate(units) if units else None,
    )


def _whole_units(records: Records, share: float, split: int, *, by_label: bool) -> Array:
    """A mask of test records: by client and class, and never only a part of a unit."""
    if not 0 < share < 1:
        raise InputError(f"test_share = {share:g}: must be a number in (0, 1)")
    assert records.clients is not None
    units = np.arange(len(records)) if records.units is None else records.units
    _, first, belongs = np.unique(units, return_index=True, return_inverse=True)
    labels = records.labels[first] if by_label else np.zeros(len(first))
    groups = np.stack([records.clients[first], labels], axis=1)
    return stratified(np.unique(groups, axis=0, return_inverse=True)[1], share, split)[belongs]


def _typed(where: str, records: Records, classes: Sequence[str]) -> Records:
    """Labels as whole numbers, or as floats for regression; before that they must be such."""
    require_labels(where, records.labels, len(classes))
    labels = records.labels.astype(np.int64 if classes else np.float32)
    return Records(
        features=records.features, labels=labels, clients=records.clients, units=records.units
    )
