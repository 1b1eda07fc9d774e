"""Ledgers written by earlier versions must open unchanged and keep counting.

The files in ``fixtures`` were written by pacdp 0.1.0 (commit d6b168e). They are never rewritten:
a future format gets new files beside these.
"""

import shutil
from pathlib import Path

import pytest

from pacdp.errors import BudgetExceededError
from pacdp.privacy import Adjacency, Release, SQLiteLedger

FIXTURES = Path(__file__).parent / "fixtures"
ZERO_OUT = Adjacency.ZERO_OUT
PATIENT = Release.clipped_sum(noise_multiplier=48, adjacency=ZERO_OUT, unit="patient")
SAMPLED = Release.clipped_sum(noise_multiplier=10, sampling_rate=0.1, adjacency=ZERO_OUT)

# What the version that wrote the files printed for them.
GAUSSIAN_HEAD = "d922feb3766c1851f9efa30040503df1881ea7e4e263b12f951350cca73771c5"
GAUSSIAN_EPSILON = 0.20417681505712287
POISSON_HEAD = "8603382eee39f6939e6b6e448a427879b92e7334b272171e02b8892e3d31f35c"
POISSON_REALISED = 0.10034007995697952
POISSON_CHARGED = 0.1253162193685909


@pytest.fixture
def copied(tmp_path):
    def copy(name):
        path = tmp_path / name
        shutil.copy(FIXTURES / name, path)
        return path

    return copy


def test_gaussian_ledger_opens_with_the_same_epsilon(copied):
    path = copied("format-1-gaussian.ledger")
    before = path.read_bytes()
    ledger = SQLiteLedger(path, head=GAUSSIAN_HEAD)
    assert ledger.client == "north"
    assert ledger.head == GAUSSIAN_HEAD
    assert [entry.kind for entry in ledger.entries] == [
        *("open", "release", "release", "release", "release", "budget", "release")
    ]
    assert str(ledger.filter.budget) == "ε = 0.8 at δ = 1e-05, zero-out of a patient (exact)"
    assert ledger.filter.spent.total() == 10
    # The last digit may differ where another math library rounds differently.
    assert ledger.filter.realised.epsilon == pytest.approx(GAUSSIAN_EPSILON, rel=1e-13)
    assert ledger.filter.charged == ledger.filter.realised
    assert path.read_bytes() == before


def test_gaussian_ledger_keeps_counting(copied):
    path = copied("format-1-gaussian.ledger")
    ledger = SQLiteLedger(path)
    before = list(ledger.entries)
    assert ledger.count_releases("first").total() == 7
    assert ledger.filter.affordable(PATIENT) == 101
    ledger.reserve(PATIENT.times(101), run="third")
    again = SQLiteLedger(path, head=GAUSSIAN_HEAD)
    assert again.filter.spent.total() == 111
    assert again.entries[:-1] == before
    with pytest.raises(BudgetExceededError, match="left: 0 releases"):
        again.reserve(PATIENT, run="third")


def test_poisson_ledger_opens_with_the_same_epsilon(copied):
    ledger = SQLiteLedger(copied("format-1-poisson.ledger"), head=POISSON_HEAD)
    assert ledger.client == "south"
    assert ledger.head == POISSON_HEAD
    assert [entry.kind for entry in ledger.entries] == ["open", "freeze", "release", "release"]
    assert ledger.filter.spent.total() == 5
    # Numerical accounting: other builds of FFT and NumPy differ in more than the last digit.
    assert ledger.filter.realised.epsilon == pytest.approx(POISSON_REALISED, rel=1e-9)
    assert ledger.filter.charged.epsilon == pytest.approx(POISSON_CHARGED, rel=1e-9)


def test_poisson_ledger_keeps_counting(copied):
    path = copied("format-1-poisson.ledger")
    ledger = SQLiteLedger(path)
    assert ledger.filter.affordable(SAMPLED) == 5
    ledger.reserve(SAMPLED.times(5), run="sampled")
    again = SQLiteLedger(path, head=POISSON_HEAD)
    # The plan was charged as a whole when it was frozen.
    assert again.filter.charged.epsilon == pytest.approx(POISSON_CHARGED, rel=1e-9)
    with pytest.raises(BudgetExceededError, match="frozen plan"):
        again.reserve(SAMPLED, run="sampled")
