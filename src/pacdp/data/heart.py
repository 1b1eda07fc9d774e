"""UCI Heart Disease: four hospitals, included in the package (heart.LICENCE.md).

Every constant that scales a feature or replaces a missing value was published independently of
these records. A mean or maximum computed from the records would be a release that is not accounted
for.

- Age, blood pressure and cholesterol span the categories of the Framingham score sheet (Wilson
  et al., Circulation 97, 1998: ages 30 to 74, systolic 120 to 160 mmHg, total cholesterol 160 to
  280 mg/dl); values outside are clipped to the nearest end, as they are there.
- Heart rate spans from 60, the lower end of a normal resting rate, to 220, from which Fox, Naughton
  and Haskell (Annals of Clinical Research 3, 1971) subtract the age.
- ST depression is in units of 2 mm, with 1 mm as the usual threshold of a positive exercise test
  (Gibbons et al., ACC/AHA guideline for exercise testing, 1997).

The ``clinical`` features are those by which clinicians of the time diagnosed coronary disease, each
centred at a published threshold that was chosen from the literature before any model was trained:

- Age, sex and how many of the three criteria of angina a pain meets (Diamond and Forrester, New
  England Journal of Medicine 300, 1979): typical 3, atypical 2, other pain 1, none 0.
- The heart rate reached as a share of 220 minus the age; less than 85 % is an impaired response
  (Lauer et al., JAMA 281, 1999).
- Angina and ST depression under exercise, as in the treadmill score of Mark et al. (Annals of
  Internal Medicine 106, 1987), with a threshold of 1 mm.
"""

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np

from pacdp.data.digests import digest_rows
from pacdp.data.records import Dataset, Records, draw_stratified, split_dataset
from pacdp.data.sources import published_provenance
from pacdp.tasks import Classification
from pacdp.validation import FloatArray, require_member

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
CLASSES = ("no disease", "disease")
# FLamby's share (Ogier du Terrail et al. 2022), drawn within each hospital and diagnosis.
TEST_SHARE = 0.34
# Columns as they were published.
Table = dict[str, FloatArray]


@dataclass(frozen=True)
class Range:
    """A numeric column: its published range becomes [−1, 1], and values outside are clipped."""

    low: float
    high: float
    missing: float = 0
    """Replaces a missing value."""
    invalid: float | None = None
    """An impossible value that was recorded where the measurement is missing."""

    def encode(self, values: FloatArray) -> FloatArray:
        """Return one column."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.clip((values - middle) / half, -1, 1)[:, None]


@dataclass(frozen=True)
class Category:
    """A categorical column, one-hot encoded without its first value."""

    values: tuple[float, ...]
    missing: float
    invalid: None = None

    def encode(self, values: FloatArray) -> FloatArray:
        """Return a column of zeros and ones for each value but the first."""
        return (values[:, None] == np.array(self.values[1:])).astype(float)


# Missing values are replaced by normal findings: the lower category of the score sheet, a normal
# electrocardiogram, no symptom.
COLUMNS: dict[str, Range | Category] = {
    "age": Range(30, 74, missing=52),
    "sex": Category((0, 1), missing=0),
    "cp": Category((1, 2, 3, 4), missing=4),
    "trestbps": Range(120, 160, missing=120, invalid=0),
    "chol": Range(160, 280, missing=200, invalid=0),
    "fbs": Category((0, 1), missing=0),
    "restecg": Category((0, 1, 2), missing=0),
    "thalach": Range(60, 220, missing=150),
    "exang": Category((0, 1), missing=0),
    "oldpeak": Range(-2, 2, missing=0),
    "slope": Category((1, 2, 3), missing=1),
    "ca": Range(0, 3, missing=0),
    "thal": Category((3, 6, 7), missing=3),
}
# Columns that FLamby leaves out, because most hospitals did not record them.
RARE = ("slope", "ca", "thal")


def load_heart(*, split: int = 0, features: str = "all") -> Dataset:
    """Load the 740 records that are complete without slope, ca and thal.

    ``features`` are ``all`` (thirteen) or ``clinical`` (six). ``split`` is the seed of the test
    split, a third of each hospital and diagnosis.

    >>> data = load_heart()
    >>> data.shape, len(data.train) + len(data.test), np.bincount(data.train.clients).tolist()
    ((13,), 740, [200, 173, 31, 86])
    >>> load_heart(features="clinical").shape
    (6,)
    """
    table = _read_table()
    names = [name for name in COLUMNS if name not in RARE]
    complete = np.all([~np.isnan(table[name]) for name in names], axis=0)
    table = {name: values[complete] for name, values in table.items()}
    if require_member("features", features, ("all", "clinical")) == "clinical":
        columns = encode_clinical(table)
    else:
        columns = [COLUMNS[name].encode(table[name]) for name in names]
    return _make_dataset("heart", table, columns, split)


def encode_clinical(table: Table) -> list[FloatArray]:
    """Return six columns in [−1, 1] that are zero at a published threshold.

    >>> patient = {"age": 52, "sex": 1, "cp": 1, "thalach": 168, "exang": 0, "oldpeak": 1}
    >>> table = {name: np.array([float(value)]) for name, value in patient.items()}
    >>> [column.item() for column in encode_clinical(table)]
    [0.0, 1.0, 1.0, 1.0, -1.0, 0.0]
    """
    return [
        Range(30, 74).encode(table["age"]),
        Range(0, 1).encode(table["sex"]),
        # How many criteria of angina the pain meets.
        Range(0, 3).encode(4 - table["cp"]),
        Range(0.7, 1).encode(table["thalach"] / (220 - table["age"])),
        Range(0, 1).encode(table["exang"]),
        Range(0, 2).encode(table["oldpeak"]),
    ]


def load_heart_full(*, split: int = 0) -> Dataset:
    """Load all 920 records and thirteen attributes; missing values are replaced and flagged.

    >>> data = load_heart_full()
    >>> data.shape, len(data.train) + len(data.test)
    ((28,), 920)
    """
    table = _read_table()
    columns, flags = [], []
    for name, column in COLUMNS.items():
        values = table[name]
        missing = np.isnan(values) | (values == column.invalid)
        columns.append(column.encode(np.where(missing, column.missing, values)))
        # Age, sex and pain are known for everyone. Which columns have a flag is fixed here and must
        # not depend on the records.
        if name not in ("age", "sex", "cp"):
            flags.append(missing[:, None].astype(float))
    return _make_dataset("heart-full", table, columns + flags, split)


def _read_table() -> Table:
    """Read the columns as they were published; NaN where there is no value."""
    text = resources.files("pacdp.data").joinpath("heart.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    table = {
        name: np.array([float(row[name] or "nan") for row in rows]) for name in [*COLUMNS, "num"]
    }
    table["hospital"] = np.array([float(HOSPITALS.index(row["hospital"])) for row in rows])
    table["row"] = np.arange(float(len(rows)))
    return table


def _make_dataset(name: str, table: Table, columns: list[FloatArray], split: int) -> Dataset:
    labels = (table["num"] > 0).astype(np.int64)
    hospitals = table["hospital"].astype(np.int64)
    # The row in the published table is part of the key, so that all encodings of a patient match.
    identity = [np.nan_to_num(table[name], nan=-1) for name in [*COLUMNS, "row"]]
    records = Records(
        features=np.concatenate(columns, axis=1).astype(np.float32),
        labels=labels,
        clients=hospitals,
        keys=digest_rows(np.stack(identity, axis=1)),
    )
    return split_dataset(
        records,
        draw_stratified(2 * hospitals + labels, TEST_SHARE, split),
        name=name,
        task=Classification.named(CLASSES),
        clients=HOSPITALS,
        provenance=published_provenance("heart"),
    )
