"""Six clinical features of Heart, each centred at a mark that was published before."""

import numpy as np
import pytest

from pacdp.data import load_dataset, refuse_overlap
from pacdp.data.heart import encode_clinical
from pacdp.errors import DataError, InputError


def encoded(**values):
    patient = {"age": 52, "sex": 0, "cp": 4, "thalach": 150, "exang": 0, "oldpeak": 0} | values
    table = {name: np.array([float(value)]) for name, value in patient.items()}
    return [float(column[0, 0]) for column in encode_clinical(table)]


def test_six_columns_within_bounds():
    data = load_dataset("heart", features="clinical")
    values = np.concatenate([data.train.features, data.test.features])
    assert values.shape == (740, 6)
    assert np.abs(values).max() == 1
    # None of them is the same for everyone.
    assert (values.std(0) > 0.1).all()


def test_published_marks_lie_at_zero():
    age, _, _, rate, _, depression = encoded(age=52, thalach=0.85 * (220 - 52), oldpeak=1)
    assert (age, depression) == (0, 0)
    assert rate == pytest.approx(0, abs=1e-9)
    assert encoded(thalach=220 - 52)[3] == pytest.approx(1)
    assert encoded(thalach=60)[3] == -1
    assert encoded(oldpeak=2)[5] == 1
    assert encoded(oldpeak=-2)[5] == -1
    assert (encoded(age=20)[0], encoded(age=80)[0]) == (-1, 1)


def test_typical_angina_has_three_marks():
    assert [encoded(cp=cp)[2] for cp in (1, 2, 3, 4)] == pytest.approx([1, 1 / 3, -1 / 3, -1])
    assert [encoded(sex=sex)[1] for sex in (0, 1)] == [-1, 1]
    assert [encoded(exang=pain)[4] for pain in (0, 1)] == [-1, 1]


def test_both_readings_are_of_the_same_patients():
    plain, clinical = load_dataset("heart"), load_dataset("heart", features="clinical")
    assert plain.train.digest == clinical.train.digest
    assert np.array_equal(plain.train.clients, clinical.train.clients)
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(clinical, plain)


def test_there_are_two_readings():
    with pytest.raises(InputError, match="features = 'few': must be one of all, clinical"):
        load_dataset("heart", features="few")
