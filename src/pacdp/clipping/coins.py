"""Random draws for hidden Poisson sampling, at a rate that never exceeds the accounted one."""

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pacdp import validation
from pacdp.errors import InputError


def sample_coins(
    count: int, rate: float, *, entropy: Callable[[int], bytes] = os.urandom
) -> NDArray[np.bool_]:
    """Draw booleans that are true with probability at most ``rate``, less than 2^-64 below it.

    Each compares 64 random bits with ⌊rate·2^64⌋, in whole numbers. For rates of at least
    2^-12 the probability is exactly ``rate``, as a float has 53 binary digits. At a rate of 1 all
    are true.

    >>> sample_coins(3, 1.0)
    array([ True,  True,  True])
    """
    probability = float(validation.require_scalar("rate", validation.require_rate("rate", rate)))
    if count < 0:
        raise InputError(f"count = {count}: must be a whole number >= 0")
    numerator, denominator = probability.as_integer_ratio()
    threshold = (numerator << 64) // denominator
    words = np.frombuffer(entropy(8 * count), dtype="<u8", count=count)
    if threshold == 2**64:
        # 2^64 does not fit into a word; every word is below it.
        return np.ones(count, dtype=np.bool_)
    return words < np.uint64(threshold)
