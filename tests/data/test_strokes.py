"""Digits drawn by a pen along splines, and scribbles that are none."""

import numpy as np
import pytest

from pacdp.data import load_dataset, refuse_overlap
from pacdp.data.proxy import digits_for_mnist
from pacdp.data.strokes import POINTS, TEMPLATES, _parse_template, draw_scribbles
from pacdp.errors import InputError


@pytest.fixture(scope="module")
def drawn():
    return load_dataset("strokes", records=5000, seed=3)


def masses(images):
    values = images[:, 0].astype(float)
    total = values.sum((1, 2))
    pixels = np.arange(28)
    return values.sum(1) @ pixels / total, values.sum(2) @ pixels / total


def test_strokes_are_in_the_frame_of_mnist(drawn):
    assert str(drawn) == "strokes: 4000 + 1000 records (1, 28, 28), 10 classes"
    assert drawn.train.features.dtype == np.uint8
    assert drawn.task.class_names == tuple("0123456789")
    # Black paper and white ink.
    images = drawn.train.features[:, 0]
    assert np.median(images) == 0
    assert images.reshape(len(images), -1).max(1).min() > 100
    assert images[:, [0, -1]].mean() < 1
    assert images[:, :, [0, -1]].mean() < 1


def test_classes_are_balanced(drawn):
    assert np.bincount(drawn.train.labels).tolist() == [400] * 10
    assert np.bincount(drawn.test.labels).tolist() == [100] * 10


@pytest.mark.parametrize("kind", ["strokes", "scribbles"])
def test_images_are_centred_and_fill_the_box(drawn, kind):
    images = drawn.train.features if kind == "strokes" else draw_scribbles(500, seed=1)
    for place in masses(images):
        assert np.abs(place - 14).max() < 0.5
    dark = images[:, 0] > 127
    high, wide = dark.any(2).sum(1), dark.any(1).sum(1)
    assert 15 <= np.median(np.maximum(high, wide)) <= 22
    assert np.maximum(high, wide).max() <= 23


def test_a_seed_says_it_all(drawn):
    again = load_dataset("strokes", records=5000, seed=3)
    assert drawn.train.digest == again.train.digest
    assert drawn.test.digest == again.test.digest
    other = load_dataset("strokes", records=5000, seed=4)
    refuse_overlap(other, drawn)
    assert np.array_equal(draw_scribbles(20, seed=1), draw_scribbles(20, seed=1))
    assert not np.array_equal(draw_scribbles(20, seed=1), draw_scribbles(20, seed=2))


def test_no_two_images_are_alike(drawn):
    identities = np.concatenate([drawn.train.identities(), drawn.test.identities()])
    assert len(np.unique(identities)) == len(drawn.train) + len(drawn.test)


def test_templates_can_be_read():
    for ways in TEMPLATES.values():
        for weight, way in ways:
            assert weight > 0
            template = _parse_template(way)
            assert template.basis.shape == (POINTS, len(template.points))
            # A digit that is moved is the same digit.
            assert np.allclose(template.basis.sum(1), 1, atol=1e-5)
            assert (template.parts.sum(0) > 0).all()


def test_scribbles_know_no_template(monkeypatch):
    plain = draw_scribbles(10, seed=0)
    monkeypatch.setattr("pacdp.data.strokes.TEMPLATES", {})
    assert np.array_equal(draw_scribbles(10, seed=0), plain)


def test_scribbles_are_no_strokes(drawn):
    """A linear model tells them from digits far better than a coin."""
    from sklearn.linear_model import LogisticRegression

    def mixed(digits, seed):
        others = draw_scribbles(len(digits), seed=seed)
        pixels = np.concatenate([digits, others]).reshape(2 * len(digits), -1) / 255
        return pixels, np.repeat([0, 1], len(digits))

    model = LogisticRegression(C=0.01, max_iter=200).fit(*mixed(drawn.train.features[:2000], 1))
    assert model.score(*mixed(drawn.test.features, 2)) > 0.7


def test_strokes_teach_to_read_handwriting(drawn):
    """What is learnt on strokes alone reads digits that people wrote."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=0.01, max_iter=200)
    model.fit(drawn.train.features.reshape(4000, -1) / 255, drawn.train.labels)
    written = digits_for_mnist(copies=1).data.test
    assert model.score(written.features.reshape(len(written), -1) / 255, written.labels) > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": 49}, "records = 49: must be at least 5 for each of 10 classes"),
        ({"records": 0}, "records = 0"),
        ({"records": 99.5}, "records = 99.5"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 0.5}, "seed = 0.5"),
        ({"split": 1}, "strokes: has no option split; there are records, seed"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        load_dataset("strokes", **options)


@pytest.mark.parametrize(("records", "seed"), [(0, 0), (-1, 0), (1.5, 0), (1, -1)])
def test_bad_scribbles_are_refused(records, seed):
    with pytest.raises(InputError):
        draw_scribbles(records, seed)
