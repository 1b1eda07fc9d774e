"""Validate parameters where they enter the package.

Each function takes the name of a parameter and its value (a number or an array), and returns the
value as float or integer data. A value that is not allowed raises
:class:`~pacdp.errors.InputError` with the name, the offending value and what is allowed.
"""

import difflib
import math
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pacdp.errors import InputError, PacdpError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Beyond 2^53 a float no longer holds every whole number, so a count could be lost silently.
LARGEST_COUNT = 2**53
# For any ε in this range, μ ≈ √(2ε) or ε/√(2 ln(1/δ)), its square, and the total over 2^53 releases
# are ordinary floating-point numbers. Much beyond it one of them overflows or becomes zero.
SMALLEST_BUDGET, LARGEST_BUDGET = 1e-100, 1e100


def require_positive(name: str, value: ArrayLike) -> FloatArray:
    """Require finite numbers greater than zero.

    >>> float(require_positive("epsilon", 0.5))
    0.5
    >>> require_positive("epsilon", -1)
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: epsilon = -1: must be a finite number > 0
    """
    return _require(name, value, lambda a: np.isfinite(a) & (a > 0), "a finite number > 0")


def require_nonnegative(name: str, value: ArrayLike) -> FloatArray:
    """Require finite numbers of at least zero.

    >>> float(require_nonnegative("epsilon", 0))
    0.0
    """
    return _require(name, value, lambda a: np.isfinite(a) & (a >= 0), "a finite number >= 0")


def require_budget(name: str, value: ArrayLike) -> FloatArray:
    """Require budgets ε: greater than zero, and in the range for which noise can be computed.

    >>> float(require_budget("epsilon", 0.5))
    0.5
    >>> require_budget("epsilon", 1e308)
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: epsilon = 1e+308: must be a number from 1e-100 to 1e+100
    """
    allowed = f"a number from {SMALLEST_BUDGET:g} to {LARGEST_BUDGET:g}"
    return _require(
        name,
        require_positive(name, value),
        lambda a: (a >= SMALLEST_BUDGET) & (a <= LARGEST_BUDGET),
        allowed,
    )


def require_probability(name: str, value: ArrayLike) -> FloatArray:
    """Require numbers strictly between 0 and 1, such as δ.

    >>> float(require_probability("delta", 1e-5))
    1e-05
    """
    return _require(name, value, lambda a: (a > 0) & (a < 1), "a number in (0, 1)")


def require_rate(name: str, value: ArrayLike) -> FloatArray:
    """Require numbers in (0, 1], such as sampling rates.

    >>> float(require_rate("sampling_rate", 1))
    1.0
    """
    return _require(name, value, lambda a: (a > 0) & (a <= 1), "a number in (0, 1]")


def require_count(name: str, value: ArrayLike) -> IntArray:
    """Require whole numbers of at least one.

    >>> int(require_count("releases", 13))
    13
    """
    allowed = "a whole number from 1 to 2^53"
    array = _numbers(name, value, allowed)
    # Integers are compared as such, before a float could round them; NaN is never cast to one.
    exact = np.asarray(value) if np.asarray(value).dtype.kind in "iu" else array
    whole = (exact >= 1) & (exact <= LARGEST_COUNT) & (array == np.floor(array))
    _refuse(name, array, ~whole, allowed)
    return array.astype(np.int64)


def require_scalar(name: str, array: NDArray[Any]) -> Any:
    """Return the number in a validated value, and refuse an array.

    >>> require_scalar("delta", require_probability("delta", 1e-5))
    1e-05
    """
    if array.ndim:
        raise InputError(f"{name}: has {array.size} values, must be one number")
    return array.item()


def require_positive_number(name: str, value: float) -> float:
    """Require one finite number greater than zero.

    >>> require_positive_number("clipping_bound", 0.5)
    0.5
    """
    # Called at every training step, and creating an array is slow.
    if type(value) is float and 0.0 < value < math.inf:
        return value
    return float(require_scalar(name, require_positive(name, value)))


def broadcast_together(**arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Broadcast arrays against each other, and refuse shapes that do not fit.

    >>> [array.shape for array in broadcast_together(a=np.ones(3), b=np.ones(()))]
    [(3,), (3,)]
    """
    try:
        return [np.array(array) for array in np.broadcast_arrays(*arrays.values())]
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(f"{shapes}: must be single numbers, or one for each client") from None


def require_string(name: str, value: str) -> str:
    """Require a string, possibly empty.

    >>> require_string("run", "first")
    'first'
    """
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a string")
    return value


def require_name(name: str, value: str) -> str:
    """Require a printable string that is not blank.

    >>> require_name("client", "hospital")
    'hospital'
    """
    if not require_string(name, value).strip() or not value.isprintable():
        raise InputError(f"{name} = {value!r}: must be a printable name")
    return value


def suggest(name: str, options: Collection[str]) -> str:
    """Return "did you mean ...? " with the closest options, or nothing if none is similar.

    >>> suggest("hart", ["heart", "mnist"])
    'did you mean heart? '
    """
    similar = difflib.get_close_matches(name.lower(), options, n=2, cutoff=0.55)
    return f"did you mean {' or '.join(similar)}? " if similar else ""


def refuse_unknown(
    where: str, given: Collection[str], allowed: Collection[str], kind: str = "setting"
) -> None:
    """Refuse the first of the given names that is not allowed, and suggest a similar one.

    >>> refuse_unknown("model mlp", ["hiden"], ["hidden"])
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: model mlp: has no setting hiden; did you mean hidden? there are hidden
    """
    for name in given:
        if name not in allowed:
            raise InputError(
                f"{where}: has no {kind} {name}; {suggest(name, allowed)}there are "
                f"{', '.join(allowed) or 'none'}"
            )


def require_member(name: str, value: str, allowed: Collection[str]) -> str:
    """Require one of a set of names.

    >>> require_member("accountant", "exact", ["exact", "rdp"])
    'exact'
    """
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} = {value!r}: must be one of {', '.join(allowed)}")
    return value


def _require(
    name: str, value: ArrayLike, test: Callable[[FloatArray], NDArray[np.bool_]], allowed: str
) -> FloatArray:
    array = _numbers(name, value, allowed)
    _refuse(name, array, ~test(array), allowed)
    return array


def _numbers(name: str, value: ArrayLike, allowed: str) -> FloatArray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":  # neither True nor "0.1" is a budget
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} = {value!r}: must be {allowed}") from None


def _refuse(name: str, array: FloatArray, bad: NDArray[Any], allowed: str) -> None:
    if array.size == 0:
        raise InputError(f"{name}: is empty, must hold at least one value")
    if not np.any(bad):
        return
    if array.ndim == 0:
        raise InputError(f"{name} = {array.item():g}: must be {allowed}")
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    at = where[0] if len(where) == 1 else where
    raise InputError(f"{name}[{at}] = {array[where].item():g}: must be {allowed}")


def require_private_file(path: Path) -> Path:
    """Return the path of a file, and refuse it if other users can read or write it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "records.csv"
    >>> path.touch(0o600)
    >>> require_private_file(path).name
    'records.csv'
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise InputError(
            f"{path}: is accessible to other users (mode {mode:o}); must have mode 600"
        )
    return path


def locate_record(where: str, record: int, lines: Sequence[int] | None = None) -> str:
    """Locate a record for a message: by its line if known, or else by its number.

    >>> locate_record("a.csv", 1, lines=[2, 5])
    'a.csv, line 5'
    """
    return f"{where}, record {record}" if lines is None else f"{where}, line {lines[record]}"


def require_column(
    where: str, values: NDArray[Any], kinds: str, allowed: str, error: type[PacdpError] = InputError
) -> None:
    """Refuse an array that does not have one value of some NumPy kinds for each record.

    >>> require_column("units:", np.array([0.5]), "iu", "whole numbers")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: units: are float64 of shape (1,), must be whole numbers
    """
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise error(
            f"{where} are {describe_type(values)} of shape {values.shape}, must be {allowed}"
        )


def describe_type(values: NDArray[Any]) -> str:
    """Describe the type of an array for a message.

    NumPy's name for the type of text contains the length of the longest one, which is private.

    >>> describe_type(np.array([0.5])), describe_type(np.array(["a name"]))
    ('float64', 'text')
    """
    kind = values.dtype.kind
    return "text" if kind in "US" else "structured values" if kind == "V" else str(values.dtype)
