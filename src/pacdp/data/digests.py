"""Digests of records, by which they are recognised in other data sets."""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def digest_rows(rows: Array) -> Array:
    """Return a 128-bit digest of each row; rows of equal numbers have equal digests.

    A digest depends on the numbers of its row only, not on their type or on other rows.

    >>> digest_rows(np.zeros((3, 5), np.uint8)).dtype
    dtype('V16')
    >>> whole, real = (digest_rows(np.array([[54, 156]], kind)) for kind in (int, float))
    >>> bool(whole[0] == real[0])
    True
    """
    joined = b"".join(
        hashlib.blake2b(form, digest_size=16).digest()
        for start in range(0, len(rows), _ROWS)
        for form in _canonical_bytes(
            rows[start : start + _ROWS].reshape(-1, math.prod(rows.shape[1:]))
        )
    )
    return np.frombuffer(joined, dtype="V16")


# Rows that are converted at a time, which bounds the memory of the copies.
_ROWS = 4096


def _canonical_bytes(rows: Array) -> Iterator[bytes]:
    """Yield each row in an encoding that depends on its numbers, but not on their type."""
    if rows.dtype == np.uint8:
        yield from (row.tobytes() for row in rows)
        return
    # Adding zero turns -0.0 into 0.0.
    single = rows.astype(np.float32) + np.float32(0)
    whole = np.round(single)
    # Rows of whole numbers from 0 to 255 are encoded as bytes, like pixels, and rounding errors of
    # rescaled pixels are ignored. Rows of tiny numbers are excluded: they would all become zeros.
    near = ((np.abs(single - whole) < 2e-4) & (whole >= 0) & (whole <= 255)).all(1)
    near &= (single.max(1, initial=0) >= 0.5) | ~single.any(1)
    for number, row in enumerate(single):
        if near[number]:
            yield whole[number].astype(np.uint8).tobytes()
        elif rows.dtype.kind in "iu" and np.any(row != rows[number]):
            # Integers that float32 cannot represent.
            yield rows[number].astype(np.int64).tobytes()
        else:
            yield row.tobytes()
