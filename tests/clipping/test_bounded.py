"""Bounded values, noise, and the one place where they meet."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from pacdp.clipping import (
    Bounded,
    ClippedGradient,
    CrossEntropy,
    SimulatedNoise,
    SystemNoise,
    centred_count,
    clip_upload,
    release,
)
from pacdp.errors import InputError
from pacdp.privacy import Adjacency, account, calibrate

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def noise(client=0, round_=2):
    return SimulatedNoise(seed=1, client=client, round=round_)


def clipped(adjacency, bound=0.5):
    engine = ClippedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency=adjacency)
    return engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), clipping_bound=bound)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_what_is_debited_is_what_was_promised(adjacency):
    """Calibrate, clip, debit: the ε of the debit is the budget, under either adjacency."""
    plan = calibrate(epsilon=0.5, releases=1, adjacency=adjacency)
    event = clipped(adjacency).event(float(plan.z))
    assert event == plan.release()
    assert account(event).epsilon == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("make", [clipped, "upload", "count"])
def test_noise_is_scaled_by_the_values_own_sensitivity(adjacency, make):
    def value():
        if make == "upload":
            values = {"w": torch.ones(200_000)}
            return clip_upload(values, bound=2.0, adjacency=adjacency)
        if make == "count":
            return centred_count(torch.ones(10, dtype=torch.bool), adjacency=adjacency)
        return clipped(adjacency)

    torch.manual_seed(0)
    before = {n: v.clone() for n, v in value().values.items()}
    torch.manual_seed(0)
    bounded = value()
    after = release(bounded, z=3.0, divisor=4.0, noise=noise())
    # The same noise, drawn at the scale that the sensitivity asks for; the grid is a thousand times
    # finer.
    source = noise()
    grid = bounded.sensitivity * 2**-10 / 4.0
    for name, clean in before.items():
        drawn = source.normals(clean.numel()).reshape(clean.shape)
        expected = drawn * (3.0 * bounded.sensitivity / 4.0) + clean / 4.0
        torch.testing.assert_close(after[name].double(), expected.double(), rtol=1e-6, atol=grid)


@pytest.mark.parametrize(
    ("adjacency", "upload", "count"), [(ZERO_OUT, 4.0, 0.5), (REPLACE_ONE, 4.0, 1.0)]
)
def test_sensitivities(adjacency, upload, count):
    values = {"w": torch.randn(5)}
    assert clip_upload(values, bound=2.0, adjacency=adjacency).sensitivity == upload
    flags = torch.tensor([True, False])
    assert centred_count(flags, adjacency=adjacency).sensitivity == count


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.booleans())
def test_a_centred_count_moves_by_its_sensitivity(flags, other):
    def count(values):
        return centred_count(torch.tensor(values), adjacency=ZERO_OUT).values["count"]

    with_null = sum((0.5 if flag else -0.5) for flag in flags[1:])
    assert abs(count(flags) - with_null) <= 0.5
    assert abs(count(flags) - count([other, *flags[1:]])) <= 1.0


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.floats(1e-6, 1e6))
def test_an_upload_is_clipped(numbers, bound):
    value = clip_upload({"w": torch.tensor(numbers)}, bound=bound, adjacency=ZERO_OUT)
    assert value.values["w"].double().norm() <= bound


def test_an_upload_that_is_not_finite_is_zero():
    values = {"w": torch.tensor([math.nan, 1.0]), "v": torch.ones(2)}
    value = clip_upload(values, bound=1.0, adjacency=ZERO_OUT)
    assert all(not tensor.any() for tensor in value.values.values())


def test_an_empty_batch_is_released_as_noise_alone():
    engine = ClippedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency=ZERO_OUT)
    empty = engine(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), clipping_bound=1.0)
    released = release(empty, z=2.0, divisor=8.0, noise=noise())
    assert (released["weight"] != 0).all()


def test_a_value_is_released_once():
    value = clipped(ZERO_OUT)
    release(value, z=1.0, divisor=1.0, noise=noise())
    with pytest.raises(InputError, match="released before"):
        release(value, z=1.0, divisor=1.0, noise=noise())


@pytest.mark.parametrize("wrong", [{"z": 0.0}, {"z": math.nan}, {"divisor": 0}, {"divisor": -1}])
def test_wrong_scales_are_refused_and_nothing_is_used_up(wrong):
    value = clipped(ZERO_OUT)
    with pytest.raises(InputError, match=next(iter(wrong))):
        release(value, **({"z": 1.0, "divisor": 1.0} | wrong), noise=noise())
    assert value.values


def test_flags_are_booleans():
    with pytest.raises(InputError, match="must be 1-d bool"):
        centred_count(torch.ones(3), adjacency=ZERO_OUT)


def test_simulated_noise_is_reproducible_and_apart():
    assert torch.equal(noise().integers(1000, 50.0), noise().integers(1000, 50.0))
    keys = [(0, 0), (1, 0), (0, 1)]
    draws = [noise(*key).normals(1000) for key in keys]
    for one in range(len(keys)):
        for other in range(one):
            assert abs(float(torch.corrcoef(torch.stack([draws[one], draws[other]]))[0, 1])) < 0.2
    # One source goes on; it does not repeat itself.
    source = noise()
    assert not torch.equal(source.integers(1000, 50.0), source.integers(1000, 50.0))
    with pytest.raises(InputError, match="64-bit whole numbers"):
        SimulatedNoise(seed=2**70, client=0, round=0)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8))
def test_a_stream_does_not_depend_on_how_it_is_asked(counts):
    source = noise()
    parts = torch.cat([source.normals(count) for count in counts])
    assert torch.equal(parts, noise().normals(sum(counts)))


@pytest.mark.parametrize("source", [noise(), SystemNoise()])
def test_noise_is_gaussian(source):
    drawn = source.integers(100_000, 2e6)
    assert torch.equal(drawn, drawn.round())
    values = drawn / 2e6
    # A true Gaussian fails this once in a million times.
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6
    assert abs(float(values.std()) - 1) < 0.02


@pytest.mark.parametrize("source", [noise(), SystemNoise()])
def test_coins_fall_at_their_rate(source):
    drawn = source.coins(100_000, 0.3)
    assert drawn.dtype == torch.bool
    assert abs(int(drawn.sum()) - 30_000) < 6 * math.sqrt(100_000 * 0.21)


def test_system_noise_never_repeats():
    assert not torch.equal(SystemNoise().integers(8, 1e6), SystemNoise().integers(8, 1e6))
    assert not torch.equal(SystemNoise().coins(99, 0.5), SystemNoise().coins(99, 0.5))


def test_nothing_else_in_the_package_adds_noise():
    """Random numbers are drawn in one module, and added in one function.

    The generators of public records and of made-up problems draw, too, and add nothing to anyone's
    release.
    """
    import re
    from pathlib import Path

    import pacdp

    drawing = re.compile(r"\.normal_?\(|\.fill\(|randn|standard_normal|urandom|\.rand\(")
    root = Path(pacdp.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[:2] != ("paper", "theory")
        for line in path.read_text().splitlines()
        if drawing.search(line) and not line.strip().startswith((">>>", "..."))
    }
    drawn_for_releases = {f"clipping/{name}.py" for name in ("coins", "noise", "rounded_gaussian")}
    drawn_for_public_records = {
        *("data/builtin.py", "data/strokes.py", "features/synthetic.py"),
        # Synthetic examples, on which models are tested.
        "clipping/gradient.py",
    }
    assert found == drawn_for_releases | drawn_for_public_records


def test_noise_that_could_not_be_added_exactly_is_refused():
    value = Bounded(values={"w": torch.zeros(3)}, bound=1.0, sensitivity=1.0, adjacency=ZERO_OUT)
    with pytest.raises(InputError, match="too much noise for 3 coordinates"):
        release(value, z=1e12, divisor=200, noise=SystemNoise())
    assert value.values


def test_a_bounded_value_is_frozen():
    value = Bounded(values={}, bound=1.0, sensitivity=1.0, adjacency=ZERO_OUT)
    with pytest.raises(AttributeError):
        value.sensitivity = 0.1
