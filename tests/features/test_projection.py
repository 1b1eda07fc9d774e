"""Principal directions and records of length one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pacdp.features.projection import Projection, normalise_rows


def features(seed, records, size):
    random = torch.Generator().manual_seed(seed)
    scales = torch.linspace(3, 0.5, size)
    return torch.randn(records, size, generator=random) * scales + 2


@given(st.integers(0, 2**31), st.sampled_from([(40, 6), (6, 40), (12, 12)]))
@settings(max_examples=20)
def test_directions_are_orthonormal_and_sorted(seed, size):
    values = features(seed, *size)
    most = min(size) - 1
    found = Projection.fit(values, most)
    assert torch.allclose(found.directions.T @ found.directions, torch.eye(most), atol=1e-4)
    assert (found.spread.diff() <= 1e-6).all()
    assert torch.allclose(
        found.transform(values).square().mean(0), found.spread, rtol=1e-3, atol=1e-5
    )
    # The largest entry of each is positive, so that machines agree on its sign.
    assert (found.directions.gather(0, found.directions.abs().argmax(0)[None]) > 0).all()


def test_both_ways_to_compute_give_the_same():
    values = features(0, 30, 30)
    wide = torch.cat([values, torch.zeros(30, 5)], dim=1)
    few, many = Projection.fit(wide, 8), Projection.fit(values, 8)
    assert torch.allclose(few.spread, many.spread, rtol=1e-4)
    assert torch.allclose(few.directions[:30], many.directions, atol=1e-3)
    assert few.directions[30:].abs().max() < 1e-5


def test_whitening_gives_equal_spread_on_the_reference():
    values = features(1, 200, 10)
    found = Projection.fit(values, 10)
    along = found.transform(values)
    white = along * found.spread**-0.5
    assert white.square().mean(0).tolist() == pytest.approx([1] * 10, rel=1e-3)
    made = normalise_rows(along, found.spread, dimension=10, whitening=1.0)
    assert torch.allclose(made, white / white.norm(dim=1, keepdim=True), atol=1e-5)
    half = normalise_rows(along, found.spread, dimension=4, whitening=0.5)
    expected = along[:, :4] * found.spread[:4] ** -0.25
    assert torch.allclose(half, expected / expected.norm(dim=1, keepdim=True), atol=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 6), st.floats(0, 1))
@settings(max_examples=20)
def test_every_record_has_length_one(seed, dimension, whitening):
    values = features(seed, 20, 6)
    found = Projection.fit(values, 6)
    made = normalise_rows(
        found.transform(values), found.spread, dimension=dimension, whitening=whitening
    )
    assert made.shape == (20, dimension)
    assert made.norm(dim=1).tolist() == pytest.approx([1] * 20, rel=1e-4)


def test_a_record_of_nothing_stays_nothing():
    assert normalise_rows(torch.zeros(1, 3), None, dimension=None, whitening=0.0).tolist() == [
        [0, 0, 0]
    ]
