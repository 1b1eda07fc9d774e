"""UCI Heart Disease: four hospitals, embedded in the package (heart.LICENCE.md).

Every number that scales a feature or stands for a missing one was published before and apart from
these records. A mean or a maximum taken from them would be a release that nobody paid for.

- Age, blood pressure and cholesterol span the categories of the Framingham score sheet (Wilson
  et al., Circulation 97, 1998: ages 30 to 74, systolic 120 to 160 mmHg, total cholesterol 160 to
  280 mg/dl); beyond them a value counts as the nearest end, as it does there.
- Heart rate spans from 60, the lower end of a normal resting rate, to 220, from which Fox, Naughton
  and Haskell (Annals of Clinical Research 3, 1971) subtract the age.
- ST depression is in units of 2 mm, with 1 mm as the usual mark of a positive exercise test
  (Gibbons et al., ACC/AHA guideline for exercise testing, 1997).

The ``clinical`` reading keeps what clinicians of the time judged coronary disease by, each centred
at a published mark, chosen from the literature before any model was trained on it:

- Age, sex and how many of the three marks of angina a pain has (Diamond and Forrester, New England
  Journal of Medicine 300, 1979): typical 3, atypical 2, other pain 1, none 0.
- The heart rate reached as a share of 220 minus the age; failing 85 % is an impaired response
  (Lauer et al., JAMA 281, 1999).
- Angina and ST depression under exercise, as in the treadmill score of Mark et al. (Annals of
  Internal Medicine 106, 1987), with 1 mm as the mark.
"""

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from pacdp.data.records import Dataset, Provenance, Records, digest_rows, draw_stratified
from pacdp.tasks import Classification
from pacdp.validation import member

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
CLASSES = ("no disease", "disease")
# FLamby's share (Ogier du Terrail et al. 2022), drawn within each hospital and diagnosis.
TEST_SHARE = 0.34
PROVENANCE = Provenance(
    source="UCI Heart Disease, Janosi, Steinbrunn, Pfisterer and Detrano",
    licence="CC BY 4.0",
    citation="Janosi, Steinbrunn, Pfisterer, Detrano. Heart Disease. UCI Machine Learning "
    "Repository, 1989. doi:10.24432/C52P4X.",
)


@dataclass(frozen=True)
class Range:
    """A number: its published range becomes [−1, 1], and what lies beyond counts as its end."""

    low: float
    high: float
    missing: float
    """What stands for a value that was not taken."""
    never: float | None = None
    """A value that no living patient has, written where none was taken."""

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One column."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.clip((values - middle) / half, -1, 1)[:, None]


@dataclass(frozen=True)
class Category:
    """A code: one column for each value but the first, which is all zeros."""

    values: tuple[float, ...]
    missing: float
    never: None = None

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A column of zeros and ones for each of the other codes."""
        return (values[:, None] == np.array(self.values[1:])).astype(float)


# Missing values are read as normal findings: the lower category of the score sheet, a normal
# electrocardiogram, no symptom.
COLUMNS: dict[str, Range | Category] = {
    "age": Range(30, 74, missing=52),
    "sex": Category((0, 1), missing=0),
    "cp": Category((1, 2, 3, 4), missing=4),
    "trestbps": Range(120, 160, missing=120, never=0),
    "chol": Range(160, 280, missing=200, never=0),
    "fbs": Category((0, 1), missing=0),
    "restecg": Category((0, 1, 2), missing=0),
    "thalach": Range(60, 220, missing=150),
    "exang": Category((0, 1), missing=0),
    "oldpeak": Range(-2, 2, missing=0),
    "slope": Category((1, 2, 3), missing=1),
    "ca": Range(0, 3, missing=0),
    "thal": Category((3, 6, 7), missing=3),
}
# What FLamby leaves out, because most hospitals did not take it.
RARE = ("slope", "ca", "thal")


def heart(*, split: int = 0, features: str = "all") -> Dataset:
    """The 740 complete records without slope, ca and thal: thirteen features, or six clinical ones.

    ``split`` is the seed of the test split, a third of each hospital and diagnosis.

    >>> data = heart()
    >>> data.shape, len(data.train) + len(data.test), np.bincount(data.train.clients).tolist()
    ((13,), 740, [200, 173, 31, 86])
    >>> heart(features="clinical").shape
    (6,)
    """
    table = _table()
    names = [name for name in COLUMNS if name not in RARE]
    complete = np.all([~np.isnan(table[name]) for name in names], axis=0)
    table = {name: values[complete] for name, values in table.items()}
    if member("features", features, ("all", "clinical")) == "clinical":
        return _dataset("heart", table, _clinical(table), split)
    return _dataset("heart", table, [COLUMNS[n].encode(table[n]) for n in names], split)


def _clinical(table: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Six columns in [−1, 1], zero where a published mark lies."""
    columns = {
        "age": (table["age"], Range(30, 74, missing=52)),
        "sex": (table["sex"], Range(0, 1, missing=0)),
        "marks of angina": (4 - table["cp"], Range(0, 3, missing=0)),
        "share of heart rate": (table["thalach"] / (220 - table["age"]), Range(0.7, 1, missing=1)),
        "exercise angina": (table["exang"], Range(0, 1, missing=0)),
        "ST depression": (table["oldpeak"], Range(0, 2, missing=0)),
    }
    return [scale.encode(values) for values, scale in columns.values()]


def heart_full(*, split: int = 0) -> Dataset:
    """All 920 records and thirteen attributes; what is missing is constant, and flagged.

    >>> data = heart_full()
    >>> data.shape, len(data.train) + len(data.test)
    ((28,), 920)
    """
    table = _table()
    encoded, flags = [], []
    for name, column in COLUMNS.items():
        values = table[name]
        absent = np.isnan(values) | (values == column.never)
        encoded.append(column.encode(np.where(absent, column.missing, values)))
        # Age, sex and pain were asked of everyone: which columns have a flag is fixed here, and
        # not by whether the records at hand happen to need one.
        if name not in ("age", "sex", "cp"):
            flags.append(absent[:, None].astype(float))
    return _dataset("heart-full", table, encoded + flags, split)


def _table() -> dict[str, NDArray[np.float64]]:
    """Columns as they were published; NaN where there is no value."""
    text = resources.files("pacdp.data").joinpath("heart.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    table = {
        name: np.array([float(row[name] or "nan") for row in rows]) for name in [*COLUMNS, "num"]
    }
    table["hospital"] = np.array([float(HOSPITALS.index(row["hospital"])) for row in rows])
    table["row"] = np.arange(float(len(rows)))
    return table


def _dataset(
    name: str,
    table: dict[str, NDArray[np.float64]],
    columns: list[NDArray[np.float64]],
    split: int,
) -> Dataset:
    labels = (table["num"] > 0).astype(np.int64)
    hospitals = table["hospital"].astype(np.int64)
    # Keyed by the row of the published table, both readings are known for the same patients.
    keys = digest_rows(
        np.stack([np.nan_to_num(table[n], nan=-1) for n in [*COLUMNS, "row"]], axis=1)
    )
    records = Records(
        features=np.concatenate(columns, axis=1).astype(np.float32),
        labels=labels,
        clients=hospitals,
        keys=keys,
    )
    test = draw_stratified(2 * hospitals + labels, TEST_SHARE, split)
    return Dataset(
        name=name,
        train=records.take(~test),
        test=records.take(test),
        task=Classification.named(CLASSES),
        clients=HOSPITALS,
        provenance=PROVENANCE,
    )
