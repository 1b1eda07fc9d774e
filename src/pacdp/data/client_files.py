"""Readers of a client's CSV or .npz file.

The records are private. An error message names the file, the line, the column and what is allowed;
it never shows the content of a cell, nor the error of another library that could quote it.
"""

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pacdp.data.digests import digest_rows
from pacdp.data.records import Array, require_budgets, require_finite
from pacdp.data.storage import refuse_damaged
from pacdp.errors import DataError
from pacdp.tasks import Regression
from pacdp.validation import require_column, suggest

# Units are identified by texts or whole numbers.
UNIT_KINDS, UNIT_NAMES = "iuUS", "a name or a whole number for each record"
Ranges = Mapping[str, tuple[float, float]]
# Features and labels are converted to float32 for training.
LARGEST_NUMBER = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class ClientFile:
    """The content of a client's file."""

    path: Path
    features: Array
    labels: Array
    units: Array | None
    """The name of each record's unit."""
    budgets: Array | None
    """The ε of each record."""
    columns: tuple[str, ...] | None
    """The names of the features, for a CSV file."""
    keys: Array
    """Digests of the values in the file, before scaling."""
    lines: Sequence[int] | None = None
    """The line of each record, for a CSV file."""

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.path.stem

    def unit_names(self) -> Array:
        """Return a name for each record's unit that no other client's unit has."""
        names = () if self.units is None else self.units
        return np.array([f"{self.client}/{name}" for name in names], str)


def read_csv(path: Path, ranges: Ranges, unit: str, like: tuple[str, ...] | None) -> ClientFile:
    """Read a CSV file; ``like`` are the columns of the other files, which must be the same."""
    table, lines = _read_table(path)
    unit_column = "unit" if "unit" in table else unit
    for name in table:
        # A feature by mistake would be worse than a refusal: nobody's budget would be respected.
        if name != "budget" and name.strip().casefold() in ("budget", "budgets", "epsilon", "ε"):
            raise DataError(
                f"{path}: column {name}: did you mean budget? A feature must have another name"
            )
    names = tuple(name for name in table if name not in ("label", "budget", unit_column))
    if not names:
        raise DataError(
            f"{path}: has no features, must have a column besides label, unit and budget"
        )
    if like is not None and set(names) != set(like):
        odd = sorted(set(names) ^ set(like))[0]
        has = "has a column" if odd in names else "lacks the column"
        raise DataError(f"{path}: {has} {odd}, unlike the other files; columns must be the same")
    names = like or names
    stray = [name for name in ranges if name not in names]
    if stray:
        near = suggest(stray[0], names)
        raise DataError(f"ranges.toml: {path} has no column {stray[0]}; {near}remove or rename it")
    values = [_parse_numbers(path, name, table[name], lines) for name in names]
    units = [name.strip() for name in table[unit_column]] if unit_column in table else None
    if units is not None and "" in units:
        raise DataError(
            f"{path}, line {lines[units.index('')]}: {unit_column} is empty, "
            "must identify the unit of the record"
        )
    budgets = _parse_numbers(path, "budget", table["budget"], lines) if "budget" in table else None
    if budgets is not None:
        require_budgets(str(path), budgets, None if units is None else np.array(units), lines)
    scaled = [
        _scale(column, *ranges[name]) if name in ranges else column
        for name, column in zip(names, values, strict=True)
    ]
    return ClientFile(
        path=path,
        features=np.stack(scaled, axis=1).astype(np.float32),
        labels=_parse_numbers(path, "label", table["label"], lines),
        units=None if units is None else np.array(units),
        budgets=budgets,
        columns=names,
        keys=digest_rows(np.stack(values, axis=1)),
        lines=lines,
    )


def _read_table(path: Path) -> tuple[dict[str, list[str]], list[int]]:
    """Return the cells of each column of a CSV file, and the line at which each row ends."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            numbered = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8, must be saved as UTF-8") from None
    except csv.Error:
        raise DataError(
            f"{path}, line {reader.line_num}: is not CSV, must have cells separated by commas"
        ) from None
    if not numbered:
        raise DataError(f"{path}: is empty, must have a header and a line for each record")
    header, rows = [name.strip() for name in numbered[0][1]], numbered[1:]
    # Without that column the first line may be a record instead of a header, and is not shown.
    if "label" not in header:
        why = "; cells must be separated by commas" if ";" in header[0] else ""
        raise DataError(
            f"{path}: has no column label; its first line must be a header with label{why}"
        )
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{path}: has two columns {repeated}, must have one")
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {line}: must have {len(header)} cells, as many as the header"
            )
    table = {name: [row[index] for _, row in rows] for index, name in enumerate(header)}
    return table, [line for line, _ in rows]


def _parse_numbers(path: Path, column: str, cells: Sequence[str], lines: Sequence[int]) -> Array:
    values = np.empty(len(cells))
    for number, (line, cell) in enumerate(zip(lines, cells, strict=True)):
        try:
            # Python reads 1_0 as ten.
            values[number] = float("no" if "_" in cell else cell)
            if not abs(values[number]) <= LARGEST_NUMBER:
                raise ValueError
        except ValueError:
            allowed = f"a number within ±{LARGEST_NUMBER:.3g}"
            if column == "budget":
                allowed = "a finite number > 0"
            elif column != "label":
                allowed += " (identifiers belong in a column unit)"
            raise DataError(f"{path}, line {line}: {column} must be {allowed}") from None
    return values


def _scale(values: Array, low: float, high: float) -> Array:
    return np.clip(2 * (values - low) / (high - low) - 1, -1, 1)


def read_npz(path: Path) -> ClientFile:
    """Read an .npz file with the arrays ``features`` and ``labels``.

    It may also have the arrays ``units`` and ``budgets``.
    """
    with (
        refuse_damaged(f"{path}: is not an .npz file of plain arrays", PermissionError),
        # NumPy does not close a file that it cannot read.
        path.open("rb") as stream,
        np.load(stream, allow_pickle=False) as arrays,
    ):
        names = set(arrays.files)
        if not {"features", "labels"} <= names:
            raise DataError(
                f"{path}: holds {', '.join(sorted(names))}; must hold features and labels"
            )
        odd = sorted(names - {"features", "labels", "units", "budgets"})
        if odd:
            raise DataError(
                f"{path}: array {odd[0]}: is unknown, must be features, labels, units or budgets"
            )
        features, labels = arrays["features"], arrays["labels"]
        units, budgets = (arrays[name] if name in names else None for name in ("units", "budgets"))
    if units is not None:
        require_column(f"{path}: units", units, UNIT_KINDS, UNIT_NAMES, DataError)
    for name, values in (("labels", labels), ("units", units), ("budgets", budgets)):
        if values is not None and values.shape != features.shape[:1]:
            raise DataError(f"{path}: {name} have shape {values.shape}, must be one per record")
    require_finite(str(path), features)
    Regression().require_labels(str(path), labels)
    if budgets is not None:
        budgets = require_budgets(str(path), budgets, units)
    return ClientFile(
        path=path,
        features=features,
        labels=labels,
        units=None if units is None else units.astype(str),
        budgets=budgets,
        columns=None,
        keys=digest_rows(features),
    )


def read_ranges(path: Path) -> Ranges:
    """Read the published ranges of columns; empty if the file does not exist."""
    if not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a TOML file ({error})") from error
    ranges = {}
    for name, limits in values.items():
        try:
            if any(type(limit) not in (int, float) for limit in limits):
                raise TypeError
            low, high = map(float, limits)
            if not -np.inf < low < high < np.inf:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{path}: {name}: must be [low, high] with low < high") from None
        ranges[name] = (low, high)
    return ranges
