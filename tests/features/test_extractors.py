"""Each map by itself: what it ignores, what it keeps, and that a seed says it all."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pacdp.data import Records
from pacdp.errors import InputError
from pacdp.features import Features, fit_features
from pacdp.features.deskew import deskew
from pacdp.features.extractors import EXTRACTORS, make_extractor
from pacdp.features.hog import OrientedGradients
from pacdp.features.patches import _THRESHOLD, Patches, normalise_patches
from pacdp.features.scattering import Scattering, _make_filters, _paths
from pacdp.features.synthetic import draw_dead_leaves, generate_images
from pacdp.progress import ignore_progress

seeds = st.integers(0, 2**31)


def random_images(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def scribbled(records, seed=0):
    return torch.from_numpy(generate_images((1, 28, 28), records=records, seed=seed)).float() / 255


def oriented_gradients(images, **settings):
    return OrientedGradients(tuple(images.shape[1:]), **settings).transform(images)


def scattering(images, **settings):
    return Scattering(tuple(images.shape[1:]), **settings).transform(images)


def fit_patches(images, *, seed=0, **settings):
    patches = Patches(tuple(images.shape[1:]), **settings)
    records = Records(features=images.numpy(), labels=np.zeros(len(images), np.int64))
    patches.fit(records, classes=0, seed=seed, progress=ignore_progress)
    return patches


class TestGradients:
    @pytest.mark.parametrize(
        ("shape", "cell", "cells"),
        [((1, 28, 28), 4, 49), ((1, 28, 28), 7, 16), ((3, 32, 32), 4, 64), ((3, 15, 30), 5, 18)],
    )
    def test_an_image_is_covered_by_its_cells(self, shape, cell, cells):
        found = oriented_gradients(random_images(0, 2, *shape), cell=cell, directions=6)
        assert found.shape == (2, cells * 6)

    @pytest.mark.parametrize("cell", [2, 4, 5, 7])
    def test_an_edge_at_the_border_is_seen(self, cell):
        for column in (1, 27 - 28 % cell):
            images = torch.zeros(1, 1, 28, 28)
            images[..., column:] = 1
            assert oriented_gradients(images, cell=cell).max() > 0.1

    @given(seeds, st.floats(-1, 1))
    @settings(max_examples=20)
    def test_a_constant_changes_nothing(self, seed, constant):
        images = random_images(seed, 2, 3, 16, 16)
        moved = oriented_gradients(images + constant)
        assert torch.allclose(oriented_gradients(images), moved, atol=1e-4)

    def test_dark_on_light_is_as_light_on_dark(self):
        images = scribbled(5)
        assert torch.allclose(oriented_gradients(images), oriented_gradients(1 - images), atol=1e-4)

    def test_an_edge_is_found_in_its_direction(self):
        images = torch.zeros(1, 1, 16, 16)
        images[..., 8:] = 1
        found = oriented_gradients(images, cell=4, directions=4).reshape(4, 16).sum(1)
        assert found[0] > 0
        assert found[1:].abs().max() < 1e-6
        turned = oriented_gradients(images.transpose(2, 3), cell=4, directions=4)
        assert turned.reshape(4, 16).sum(1).argmax() == 2

    def test_a_record_is_seen_by_itself(self):
        images = scribbled(6)
        alone = torch.cat([oriented_gradients(image[None]) for image in images])
        assert torch.allclose(oriented_gradients(images), alone, atol=1e-6)

    def test_cells_larger_than_the_image_are_refused(self):
        with pytest.raises(InputError, match="cells of 40 pixels are too large for images of 28"):
            oriented_gradients(torch.zeros(1, 1, 28, 28), cell=40)


class TestScattering:
    @pytest.mark.parametrize(("scales", "directions"), [(2, 8), (2, 6), (3, 4)])
    def test_wavelets_have_no_mean_and_the_average_keeps_it(self, scales, directions):
        wavelets, average = _make_filters(32, scales, directions)
        assert max(abs(complex(wave[0, 0])) for _, wave in wavelets) < 1e-7
        assert complex(average[0, 0]) == pytest.approx(1, abs=1e-6)
        assert len(wavelets) == scales * directions

    def test_wavelets_halve_their_frequency_from_scale_to_scale(self):
        wavelets, _ = _make_filters(64, 2, 8)
        peaks = []
        for scale, wave in wavelets:
            place = int(wave.abs().argmax())
            across = [math.pi * 2 * (f if f < 32 else f - 64) / 64 for f in divmod(place, 64)]
            peaks.append((scale, math.hypot(*across)))
        for scale, frequency in peaks:
            assert frequency == pytest.approx(3 * math.pi / 4 / 2**scale, rel=0.1)

    @given(seeds)
    @settings(max_examples=10)
    def test_energy_does_not_grow(self, seed):
        """Filters lose energy and moduli keep it, so all averages have less than the image."""
        images = random_images(seed, 1, 1, 32, 32)
        averages = sum(float(path.square().sum()) * 16 for path in _paths(images, 32, 2, 8))
        assert averages <= float(images.square().sum()) * (1 + 1e-5)

    def test_a_constant_is_seen_by_the_average_alone(self):
        first, *others = _paths(torch.full((1, 1, 32, 32), 0.5), 32, 2, 8)
        assert torch.allclose(first, torch.full_like(first, 0.5), atol=1e-5)
        assert max(float(path.abs().max()) for path in others) < 1e-5

    def test_a_small_shift_changes_little(self):
        images = scribbled(20)
        moved = images.roll(1, dims=3)

        def change(values, others):
            apart = (values - others).norm(dim=1) / values.norm(dim=1)
            return float(apart.mean())

        seen = change(scattering(images), scattering(moved))
        assert seen < 0.5 * change(images.flatten(1), moved.flatten(1))

    def test_a_whole_step_moves_the_averages_along(self):
        images = random_images(3, 1, 1, 32, 32)
        for path, moved in zip(
            _paths(images, 32, 2, 4), _paths(images.roll(4, dims=2), 32, 2, 4), strict=True
        ):
            assert torch.allclose(path.roll(1, dims=2), moved, atol=1e-5)

    @pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 20, 28)])
    def test_shapes(self, shape):
        found = scattering(random_images(0, 2, *shape), scales=2, directions=4)
        assert found.shape == (2, shape[0] * (1 + 8 + 16) * 16)

    def test_images_that_do_not_fit_are_refused(self):
        with pytest.raises(InputError, match="images of 8 pixels are too small for 2 scales"):
            scattering(torch.zeros(1, 1, 8, 8))
        with pytest.raises(InputError, match="images of 32 x 10 pixels are too narrow"):
            scattering(torch.zeros(1, 3, 32, 10))


class TestPatches:
    @given(seeds, st.sampled_from([1, 3]), st.integers(2, 6))
    @settings(max_examples=15)
    def test_the_convolution_is_the_normalised_patch(self, seed, channels, size):
        images = random_images(seed, 2, channels, 12, 12)
        module = Patches((channels, 12, 12), filters=7, size=size)
        module.weight.copy_(random_images(seed + 1, *module.weight.shape) - 0.5)
        module.shift.copy_(random_images(seed + 2, 7) - 0.5)
        pieces = functional.unfold(images, size).transpose(1, 2)
        answers = normalise_patches(pieces) @ module.weight.T - module.shift
        side = 13 - size
        answers = answers.transpose(1, 2).unflatten(2, (side, side))
        both = torch.cat([answers - _THRESHOLD, -answers - _THRESHOLD], 1).relu()
        explicit = functional.adaptive_avg_pool2d(both, 2).flatten(1)
        assert torch.allclose(module.transform(images), explicit, atol=2e-4)

    def test_learned_filters_know_brightness_and_contrast_no_more(self):
        images = scribbled(60)
        found = fit_patches(images, filters=8)
        bright = found.transform(0.5 * images + 0.3)
        assert torch.allclose(found.transform(0.5 * images), bright, atol=1e-3)
        assert found.transform(images).shape == (60, 64)
        # Their shift is the answer to the middle of all patches, so it is small beside them.
        assert torch.isfinite(found.weight).all()

    def test_a_seed_says_it_all(self):
        images = scribbled(60)
        torch.manual_seed(1)
        one = fit_patches(images, filters=8, seed=2**40)
        torch.manual_seed(2)
        same, other = (fit_patches(images, filters=8, seed=n) for n in (2**40, 3))
        assert torch.equal(one.weight, same.weight)
        assert not torch.equal(one.weight, other.weight)

    def test_what_does_not_fit_is_refused(self):
        images = torch.zeros(2, 1, 8, 8)
        with pytest.raises(InputError, match=r"settings.size = 9: must be at most 8"):
            fit_patches(images, size=9)
        with pytest.raises(InputError, match=r"settings.filters = 60000: must be at most 50000"):
            fit_patches(images, filters=60_000)


def leaning(images, slant):
    """Images sheared about their middle, by ``slant`` pixels across for each one down."""
    turn = torch.tensor([[[1.0, slant, 0.0], [0.0, 1.0, 0.0]]]).repeat(len(images), 1, 1)
    grid = functional.affine_grid(turn, list(images.shape), align_corners=True)
    return functional.grid_sample(images, grid, align_corners=True)


class TestUpright:
    def test_a_known_shear_is_removed(self):
        line = torch.arange(29) - 14.0
        bar = torch.exp(-((line / 2.5) ** 2) - (line[:, None] / 6) ** 4)[None, None]
        for slant in (-0.5, -0.2, 0.2, 0.5):
            before, after = leaning(bar, slant), deskew(leaning(bar, slant))
            left = float((after - bar).abs().mean() / (before - bar).abs().mean())
            # What is left is what two interpolations blur.
            assert left < 0.25

    def test_ink_leans_neither_way_and_lies_in_the_middle(self):
        images = deskew(scribbled(30))
        line = torch.linspace(-1, 1, 28)
        ink = images[:, 0] / images.sum((1, 2, 3))[:, None, None]
        down, across = (ink.sum(2) @ line), (ink.sum(1) @ line)
        assert float(down.abs().max()) < 0.01
        assert float(across.abs().max()) < 0.01
        lean = (ink * line[:, None] * line).sum((1, 2))
        assert float(lean.abs().mean()) < 0.01

    def test_a_blank_image_stays_blank(self):
        assert torch.equal(deskew(torch.zeros(1, 1, 28, 28)), torch.zeros(1, 1, 28, 28))

    def test_a_record_is_seen_by_itself(self):
        images = scribbled(5)
        alone = torch.cat([deskew(image[None]) for image in images])
        assert torch.allclose(deskew(images), alone, atol=1e-6)


class TestGenerated:
    def test_a_seed_says_it_all(self):
        assert np.array_equal(
            draw_dead_leaves(3, (16, 16), seed=1), draw_dead_leaves(3, (16, 16), seed=1)
        )
        assert not np.array_equal(
            draw_dead_leaves(3, (16, 16), seed=1), draw_dead_leaves(3, (16, 16), seed=2)
        )

    def test_dead_leaves_have_edges_light_and_dark(self):
        images = draw_dead_leaves(40, (32, 32), seed=0) / 255
        assert images.shape == (40, 3, 32, 32)
        assert images.std() > 0.15
        grey = images.mean(1)
        # Light varies more than colour does, as in photographs.
        assert grey.std() > 2 * (images - grey[:, None]).std()

    @pytest.mark.parametrize("shape", [(1, 8, 8), (2, 28, 28), (5,)])
    def test_there_are_none_of_other_shapes(self, shape):
        with pytest.raises(InputError, match=r"generated images: there are none of shape \("):
            generate_images(shape, records=1, seed=0)


@pytest.mark.parametrize("name", [name for name in EXTRACTORS if name != "network"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 16)])
def test_a_map_is_the_same_whatever_torchs_own_seed(name, shape, tmp_path, monkeypatch):
    few = {"filters": 8} if "filters" in EXTRACTORS[name].defaults else {}
    wanted = Features(name=name, settings=few | ({"upright": 1} if few else {}))
    images = torch.from_numpy(generate_images(shape, records=5, seed=9)).float() / 255
    found = []
    for number in (1, 2):
        monkeypatch.setenv("PACDP_CACHE_DIR", str(tmp_path / str(number)))
        torch.manual_seed(number)
        ready = fit_features(wanted, shape)
        found.append(ready.projection.transform(ready.extractor.transform(images)))
        # And torch's own randomness goes on as if nothing had been.
        after = torch.rand(1)
        torch.manual_seed(number)
        assert torch.equal(after, torch.rand(1))
    assert torch.equal(*found)
    made_by = {"records": "none", "made by": "generated images, seed 0"}
    assert ready.provenance == {**made_by, "shape": str(shape)}


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("gradients", {"cel": 4}, "representation gradients: has no setting cel; "),
        ("plain", {"cell": 4}, "has no setting cell; there are none"),
        ("gradients", {"cell": 0}, r"settings.cell = 0: must be a whole number, at least 1"),
        ("gradients", {"cell": 1.5}, r"settings.cell = 1.5: must be a whole number"),
        ("gradients", {"cell": math.inf}, r"settings.cell = inf: must be a whole number"),
        ("patches", {"upright": 2}, r"settings.upright = 2: must be 0 or 1"),
    ],
)
def test_bad_settings_are_refused(name, given, message):
    with pytest.raises(InputError, match=message):
        make_extractor(name, (1, 28, 28), given)
