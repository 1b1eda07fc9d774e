"""The bounds on rounding errors, each compared with exact arithmetic."""

import math
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pacdp.clipping.bounded import noise_scale
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.numerics import (
    BLOCK,
    GRID_ERROR,
    NORM_ERROR,
    SUM_ERROR,
    UNIT_SINGLE,
    add_on_grid,
    check_noise,
    clip_factors,
    examples_per_sum,
    grid_step,
    norms,
    quantize_,
    shrink_bound,
    squared_norms,
    sum_error,
    sum_products,
    sum_rows,
)
from pacdp.clipping.rounded_gaussian import LARGEST_SCALE, SMALLEST_SCALE
from pacdp.errors import InputError


def random(seed, *shape, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


# Squares of longer vectors overflow, and their norms are infinite.
@given(st.integers(0, 10**6), st.integers(1, 5000), st.floats(-30, 16.5))
def test_norms_are_never_far_below_the_truth(seed, length, exponent):
    values = random(seed, 3, length, scale=10.0**exponent)
    true = torch.linalg.vector_norm(values.double(), dim=1)
    found = norms(values).double()
    assert (found >= true * (1 - NORM_ERROR / 2)).all()
    # And not far above it, but for what may have underflowed.
    assert (found <= true * (1 + NORM_ERROR / 2) + math.sqrt(length) * 2.0**-61).all()


def test_norms_of_many_equal_numbers_do_not_stand_still():
    """2²⁴ + 1 is 2²⁴ in single precision."""
    values = torch.ones(1, 40_000_000)
    assert float(norms(values)) == pytest.approx(math.sqrt(40_000_000), rel=NORM_ERROR / 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e20])
def test_what_is_not_finite_has_the_clip_factor_zero(bad):
    values = torch.ones(3, 5)
    values[1, 2] = bad
    assert clip_factors(norms(values), 1.0).tolist() == pytest.approx([5**-0.5, 0, 5**-0.5])
    assert not math.isfinite(float(squared_norms(values)[1]))


@given(st.integers(0, 10**6), st.integers(1, 700), st.sampled_from([1, 3, 128]))
def test_sums_are_within_their_bound(seed, rows, block):
    left, right = random(seed, rows, 2), random(seed + 1, rows, 3)
    exact = left.double().T @ right.double()
    sizes = left.double().abs().T @ right.double().abs()
    error = (sum_products(left, right, block).double() - exact).abs()
    assert (error <= sum_error(min(rows, block)) * sizes).all()
    plain = (sum_rows(left, block).double() - left.double().sum(0)).abs()
    assert (plain <= sum_error(min(rows, block)) * left.double().abs().sum(0)).all()


def test_only_the_block_of_a_record_is_rounded_differently():
    """A record of another block changes nothing but its own contribution, exactly."""
    left, right = random(0, 3 * BLOCK, 2), random(1, 3 * BLOCK, 4)
    blocks = [slice(n * BLOCK, (n + 1) * BLOCK) for n in range(3)]
    parts = [left[block].T @ right[block] for block in blocks]
    expected = sum(part.double() for part in parts)
    torch.testing.assert_close(sum_products(left, right), expected, rtol=1e-15, atol=0)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_groups_of_positions_are_nested_and_small_enough(examples, positions):
    group = examples_per_sum(examples, positions)
    block = min(examples, BLOCK)
    assert group & (group - 1) == 0
    if group:
        assert group <= 2 * block
        # Orthogonal positions have L ≤ √T·‖g‖, and are not clipped any harder.
        together = 2 * UNIT_SINGLE * block * group * positions**1.5
        assert together <= SUM_ERROR
        assert sum_error(group * positions) <= 1.004 * group * positions * UNIT_SINGLE


@given(st.floats(1e-12, 1e12), st.integers(1, 10**7))
def test_the_clipped_length_leaves_room_for_every_error(bound, examples):
    length = shrink_bound(bound, examples)
    added = 2 * (-(-examples // BLOCK) + 1) * examples * 2.0**-53
    rounding = 2 * BLOCK * sum_error(BLOCK)
    assert rounding < SUM_ERROR
    assert length * (1 + NORM_ERROR + SUM_ERROR + added) + GRID_ERROR * bound <= bound * (1 + 1e-15)
    assert length >= 0.99 * bound


@given(st.floats(1e-12, 1e12), st.integers(1, 10**9))
def test_the_grid_is_a_power_of_two_just_fine_enough(sensitivity, coordinates):
    step = grid_step(sensitivity, coordinates)
    assert math.frexp(step)[0] == 0.5
    assert step * math.sqrt(coordinates) <= GRID_ERROR * sensitivity * (1 + 1e-12)
    assert 2 * step * math.sqrt(coordinates) > GRID_ERROR * sensitivity * (1 - 1e-12)
    assert grid_step(np.array([sensitivity]), coordinates).tolist() == [step]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.lists(st.integers(-(2**50), 2**50), min_size=20, max_size=20),
    st.integers(-40, 3),
)
def test_values_are_added_on_the_grid_exactly(values, noise, exponent):
    step = 2.0**exponent
    clean = torch.tensor(values)
    drawn = torch.tensor(noise[: len(values)]).double()
    whole = quantize_(clean.clone(), step)
    for value, found in zip(clean.tolist(), whole.tolist(), strict=True):
        limited = max(min(Fraction(value) / Fraction(step), 2**51), -(2**51))
        assert abs(Fraction(found) - limited) <= Fraction(1, 2)
        assert found == int(found)
    released = add_on_grid(clean.double(), drawn.clone(), step=step, divisor=1.0)
    exact = [Fraction(a) + n for a, n in zip(whole.tolist(), noise, strict=False)]
    expected = torch.tensor([float(total * Fraction(step)) for total in exact])
    assert torch.equal(released, expected)


def test_noise_that_does_not_fit_is_refused_by_numbers_of_the_plan_alone():
    assert check_noise(2.0**33, 1) == 2.0**33
    for z, coordinates in ((2.0**34, 1), (2.0**24, 2**20), (math.inf, 1), (-1.0, 1), (1e-10, 4)):
        with pytest.raises(InputError, match="z = "):
            check_noise(z, coordinates)


@given(st.floats(1e-12, 1e12), st.integers(1, 10**8), st.floats(-40, 40))
def test_noise_that_is_accepted_can_be_drawn(sensitivity, coordinates, exponent):
    try:
        z = check_noise(2.0**exponent, coordinates)
    except InputError:
        return
    scale = noise_scale(z, sensitivity, grid_step(sensitivity, coordinates))
    assert SMALLEST_SCALE <= scale <= LARGEST_SCALE


@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_are_flushed_on_every_thread_and_nowhere_else(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tiny = torch.full((2_000_000,), 1e-40)
        assert int((tiny * 1.0 != 0).sum()) == len(tiny)  # the threads have started
        assert run_flushed(lambda: int((tiny * 1.0 != 0).sum())) == 0
        assert run_flushed(lambda: run_flushed(lambda: int((tiny * 1.0 != 0).sum()))) == 0
        assert int((tiny * 1.0 != 0).sum()) == len(tiny)
        with pytest.raises(ZeroDivisionError):
            run_flushed(lambda: 1 / 0)
        assert float(torch.tensor(1e-40) * 1) > 0
    finally:
        torch.set_num_threads(before)


def test_several_threads_can_compute_at_once():
    tiny = torch.full((10,), 1e-40)
    found = []

    def work():
        found.extend(run_flushed(lambda: (tiny * 1.0).tolist()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0.0] * 10] * 200
