"""The rounded Gaussian, draw by draw against six hundred binary digits, and as a distribution."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pacdp.clipping import rounded_gaussian
from pacdp.clipping.coins import sample_coins
from pacdp.clipping.rounded_gaussian import sample_rounded_gaussian
from pacdp.errors import InputError

DIGITS = mpmath.MPContext()
DIGITS.prec = 600
NEGATIVE = 2**63
SCALES = [0.125, 0.5, 1.0, 3.0, 1000.1, 1e7, 1e8 / 3, 1e10, 1e12 / 7, 2.0**46]


class Words:
    """Entropy that hands out chosen words, then ones (zeros would never end), and counts them."""

    def __init__(self, *words):
        self.words = list(words)
        self.used = 0

    def __call__(self, size):
        assert size % 8 == 0
        count = size // 8
        self.words += [1] * (self.used + count - len(self.words))
        taken = self.words[self.used : self.used + count]
        self.used += count
        return np.array(taken, dtype="<u8").tobytes()


def seeded(seed):
    return np.random.default_rng(seed).bytes


def tail(x):
    """Q(x) = 1 - Φ(x)."""
    return DIGITS.erfc(x / DIGITS.sqrt(2)) / 2


def border(cell, scale):
    """The tail probability at the upper end of a cell."""
    return tail(DIGITS.mpf(2 * cell + 1) / 2 / scale)


def binary(probability, words):
    """The first digits of a tail probability, 64 in a word."""
    whole = int(DIGITS.floor(DIGITS.ldexp(probability, 64 * words)))
    return [whole >> 64 * place & (2**64 - 1) for place in reversed(range(words))]


def draw(scale, *words):
    """One draw from these words; whatever it read must put it in its cell beyond doubt."""
    entropy = Words(*words)
    (value,) = sample_rounded_gaussian(1, scale, entropy=entropy)
    used = entropy.words[: entropy.used]
    confirm(value, scale, used)
    return value, len(used)


def confirm(value, scale, used):
    cell = abs(int(value))
    assert value == cell * (-1 if used[0] & NEGATIVE else 1)
    assert value != 0 or math.copysign(1, value) == 1
    low = used[0] % NEGATIVE
    for word in used[1:]:
        low = low << 64 | word
    bits = 64 * len(used)
    assert border(cell, scale) <= DIGITS.ldexp(low, -bits)
    assert cell == 0 or DIGITS.ldexp(low + 1, -bits) <= border(cell - 1, scale)


words = st.integers(0, 2**64 - 1)
# Words of every magnitude, so that every part of the tail occurs.
uneven = st.tuples(words, st.integers(0, 63)).map(lambda pair: pair[0] >> pair[1])
scales = st.one_of(st.sampled_from(SCALES), st.floats(-3, 46).map(lambda exponent: 2.0**exponent))


@settings(max_examples=1000)
@given(scale=scales, first=st.one_of(words, uneven), more=st.lists(words, max_size=3))
def test_every_draw_is_certain(scale, first, more):
    draw(scale, first, *more)


@settings(max_examples=1000)
@given(
    scale=scales,
    x=st.floats(0, 9),
    distance=st.tuples(st.sampled_from([-1, 1]), st.integers(0, 40)),
    negative=st.booleans(),
    more=words,
)
def test_draws_next_to_a_border_are_certain(scale, x, distance, negative, more):
    """From one unit of 2^-64 beside a border to far beyond what the first decision leaves open."""
    side, exponent = distance
    (first,) = binary(border(int(x * scale), scale), 1)
    first = min(max(first + side * 2**exponent, 0), NEGATIVE - 1)
    draw(scale, first + NEGATIVE * negative, more)


@pytest.mark.parametrize("scale", SCALES)
def test_a_border_within_the_first_word_is_decided_by_the_second(scale):
    for x in (0, 0.3, 1, 1.2, 4, 7):
        cell = int(x * scale)
        first, second, third = binary(border(cell, scale), 3)
        # A smaller tail probability is a larger value.
        assert draw(scale, first, second - 1) == (cell + 1, 2)
        assert draw(scale, first, second + 1) == (cell, 2)
        assert draw(scale, first + NEGATIVE, second - 1) == (-cell - 1, 2)
        assert draw(scale, first + NEGATIVE, second + 1) == (-cell, 2)
        assert draw(scale, first, second, third - 1) == (cell + 1, 3)
        assert draw(scale, first, second, third + 1) == (cell, 3)


@pytest.mark.parametrize("scale", SCALES)
def test_both_neighbours_of_such_a_word_are_certain_without_it(scale):
    # Further out the intervals are wider than the smallest cells.
    for x in (0, 0.3, 1, 1.2, 4):
        cell = int(x * scale)
        (first,) = binary(border(cell, scale), 1)
        assert draw(scale, first - 1) == (cell + 1, 1)
        assert draw(scale, first + 1) == (cell, 1)


def test_thousands_of_draws_at_once_are_certain():
    for seed, scale in enumerate(SCALES):
        drawn = np.random.default_rng(seed).integers(0, 2**64, 1000, dtype=np.uint64)
        chosen = [int(word) for word in drawn]
        entropy = Words(*chosen)
        values = sample_rounded_gaussian(len(chosen), scale, entropy=entropy)
        assert entropy.used == len(chosen)
        for value, word in zip(values, chosen, strict=True):
            confirm(value, scale, [word])


def test_the_newton_step_is_as_exact_as_its_proof_says():
    """Q is within 2^-66 of itself, above all where its expansions reach furthest."""
    ends = (np.arange(290) + 0.5) / 32 - 2.0**-40
    starts = np.concatenate([ends, ends + 2.0**-39, np.random.default_rng(6).uniform(0, 9, 500)])
    tails = [min(binary(tail(DIGITS.mpf(float(x))), 1)[0], NEGATIVE - 1) for x in starts]
    steps, densities = rounded_gaussian._newton(np.array(tails, dtype=np.uint64), starts)
    assert densities == pytest.approx(stats.norm.pdf(starts), rel=1e-13)
    for x, step, units in zip(starts, steps, tails, strict=True):
        reached = DIGITS.ldexp(tail(DIGITS.mpf(float(x)) + DIGITS.mpf(float(step))), 64)
        # The second-order term of the step is far smaller, except where intervals are wide.
        if units >= 2**40:
            assert abs(reached - units - 0.5) < units * 2.0**-66


def test_the_tail_has_no_end():
    """Words of zeros only lead out further, where no single float64 uniform reaches."""
    value, used = draw(1000.0, 0, 2**63)
    assert used == 2
    assert value == int(DIGITS.nint(1000 * solve(DIGITS.ldexp(1, -65))))
    assert value > 9000
    further, used = draw(1000.0, NEGATIVE, 0, 0, 0, 2**62, 1)
    assert used > 4
    assert further == -int(DIGITS.nint(1000 * solve(DIGITS.ldexp(1, -258))))
    assert further < -18000


def solve(probability):
    """Where the tail probability is this, by bisection."""
    low, high = DIGITS.mpf(0), DIGITS.mpf(64)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > probability else (low, middle)
    return low


def test_a_certain_draw_costs_eight_bytes():
    asked = []

    def entropy(size):
        asked.append(size)
        return seeded(len(asked))(size)

    assert sample_rounded_gaussian(100_000, 1000.0, entropy=entropy).shape == (100_000,)
    assert sum(asked) == 800_000


def test_the_sign_is_one_bit():
    first = np.random.default_rng(5).integers(0, 2**63, 50_000, dtype=np.uint64)
    flipped = first | np.uint64(NEGATIVE)
    for scale in (0.5, 3.0, 1e6):
        values = sample_rounded_gaussian(first.size, scale, entropy=lambda _: first.tobytes())
        mirrored = sample_rounded_gaussian(first.size, scale, entropy=lambda _: flipped.tobytes())
        assert np.all(values >= 0)
        assert np.array_equal(values, -mirrored)
        assert not np.signbit(mirrored[mirrored == 0]).any()


@pytest.mark.parametrize("scale", [0.125, 0.5, 1.0, 3.0])
def test_frequencies_are_those_of_the_cells(scale):
    count = 400_000
    values = sample_rounded_gaussian(count, scale, entropy=seeded(1))
    reach = math.ceil(4 * scale)
    borders = (np.arange(-reach, reach) + 0.5) / scale
    expected = np.diff(np.concatenate([[0], stats.norm.cdf(borders), [1]])) * count
    found = np.bincount(
        (np.clip(values, -reach, reach) + reach).astype(int), minlength=2 * reach + 1
    )
    enough = expected > 5
    assert enough.sum() >= 3 or scale < 0.5
    statistic = ((found - expected)[enough] ** 2 / expected[enough]).sum()
    assert stats.chi2.sf(statistic, enough.sum() - 1) > 1e-3


@pytest.mark.parametrize("scale", [1000.0, 1e7, 1e11, 2.0**46])
def test_large_scales_have_the_distribution_function_of_the_gaussian(scale):
    values = sample_rounded_gaussian(200_000, scale, entropy=seeded(2))
    assert np.array_equal(values, np.rint(values))
    # A cell holds at most this much of the distribution.
    step = 0.4 / scale
    assert stats.kstest(values / scale, stats.norm.cdf).statistic < 1.95 / 200_000**0.5 + step
    assert np.abs(stats.spearmanr(values[1:], values[:-1]).statistic) < 4 / 200_000**0.5


def test_the_last_digits_are_evenly_spread():
    """Across tens of thousands of cells every remainder is as likely as the others."""
    values = sample_rounded_gaussian(200_000, 2.0**40, entropy=seeded(3))
    assert stats.chisquare(np.bincount(np.mod(values, 64).astype(int))).pvalue > 1e-3


def test_the_system_is_where_bits_come_from():
    first, second = (sample_rounded_gaussian(1000, 1e6) for _ in range(2))
    assert not np.array_equal(first, second)
    assert 0.8e6 < first.std() < 1.2e6


def test_no_draws_are_no_draws():
    assert sample_rounded_gaussian(0, 1.0).shape == (0,)
    assert sample_coins(0, 0.5).shape == (0,)


@pytest.mark.parametrize(
    "scale", [0.0, -1.0, 2.0**-20 * 0.999, 2.0**46 * 1.001, math.inf, math.nan]
)
def test_other_scales_are_refused(scale):
    with pytest.raises(InputError, match=r"scale = .*: must be a number from 2\^-20 to 2\^46"):
        sample_rounded_gaussian(1, scale)


def test_a_negative_count_is_refused():
    with pytest.raises(InputError, match="count = -1"):
        sample_rounded_gaussian(-1, 1.0)
    with pytest.raises(InputError, match="count = -1"):
        sample_coins(-1, 0.5)


def test_entropy_that_runs_short_is_an_error():
    with pytest.raises(ValueError, match="buffer"):
        sample_rounded_gaussian(2, 1.0, entropy=lambda size: bytes(size - 8))
    with pytest.raises(ValueError, match="buffer"):
        sample_coins(2, 0.5, entropy=lambda size: bytes(size - 8))


def test_another_ndtri_is_refused(monkeypatch):
    right = rounded_gaussian.ndtri
    monkeypatch.setattr(rounded_gaussian, "ndtri", lambda p: right(p) * (1 + 2.0**-46))
    rounded_gaussian._check_ndtri.cache_clear()
    with pytest.raises(InputError, match=r"ndtri is off by .* another version of SciPy"):
        sample_rounded_gaussian(1, 1.0)
    rounded_gaussian._check_ndtri.cache_clear()


@given(rate=st.one_of(st.floats(2.0**-70, 1), st.floats(-70, 0).map(lambda e: 2.0**e)))
def test_a_coin_is_true_for_exactly_the_words_below_the_rate(rate):
    numerator, denominator = rate.as_integer_ratio()
    words = [0, 1, 2**64 - 1]
    near = numerator * 2**64 // denominator
    words += [word for word in (near - 1, near, near + 1) if 0 <= word < 2**64]
    coins = sample_coins(len(words), rate, entropy=Words(*words))
    assert coins.dtype == np.bool_
    for word, coin in zip(words, coins, strict=True):
        # True for the words 0 to ⌊rate·2^64⌋ - 1, so that their number is at most rate·2^64.
        assert coin == ((word + 1) * denominator <= numerator * 2**64)


def test_a_certain_coin_is_true_whatever_the_bits():
    assert sample_coins(2, 1.0, entropy=Words(0, 2**64 - 1)).all()


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.999])
def test_coins_come_at_their_rate(rate):
    coins = sample_coins(400_000, rate, entropy=seeded(4))
    spread = math.sqrt(rate * (1 - rate) / coins.size)
    assert abs(coins.mean() - rate) < 4 * spread
    both = (coins[1:] & coins[:-1]).mean()
    assert abs(both - rate**2) < 6 * rate * spread + 4 / coins.size


def test_a_rate_below_every_word_is_never_true():
    assert not sample_coins(1000, 2.0**-70, entropy=Words()).any()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_other_rates_are_refused(rate):
    with pytest.raises(InputError, match="rate = "):
        sample_coins(1, rate)
