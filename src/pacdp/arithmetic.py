"""The version of the arithmetic behind a file's numbers; files of another version are refused.

A seed gives the same numbers only as long as clipping, rounding and noise are computed in the same
way. Plans, curves, scores and checkpoints rely on that: a resumed run continues bit for bit, and a
curve is fitted to what the run will do. So these files carry the version of the arithmetic they
were made with.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pacdp.errors import DataError

ARITHMETIC = 2
"""To be raised when the same seed gives other numbers. Versions before 0.2.0 wrote none."""

_KEY = "arithmetic"
# The advice for all files in a run's folder: it is the run that has to be repeated.
RUN_AGAIN = "train again with pacdp run and a new --out folder"


def add_arithmetic_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file, with the arithmetic that it was made with.

    >>> add_arithmetic_version({"rounds": 3})
    {'arithmetic': 2, 'rounds': 3}
    """
    return {_KEY: ARITHMETIC, **content}


def remove_arithmetic_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`add_arithmetic_version` was given.

    >>> remove_arithmetic_version(add_arithmetic_version({"rounds": 3}))
    {'rounds': 3}
    """
    return {key: value for key, value in content.items() if key != _KEY}


def refuse_other_arithmetic(path: Path | str, content: object, *, mark: str, advice: str) -> None:
    """Refuse a file made with another arithmetic, and say how to make a new one.

    ``mark`` is a key that is never empty in such a file. Without it this is another kind of file,
    which its reader will refuse for a better reason.

    >>> refuse_other_arithmetic("a.json", {"seeds": 3}, mark="seeds", advice="run pacdp fit again")
    Traceback (most recent call last):
    ...
    pacdp.errors.DataError: a.json: was made by an earlier version of pacdp, under which a seed \
gives other numbers; run pacdp fit again
    """
    if not isinstance(content, Mapping) or not content.get(mark):
        return
    found = content.get(_KEY, 1)
    if found == ARITHMETIC:
        return
    known = isinstance(found, int)
    which = "another" if not known else "an earlier" if found < ARITHMETIC else "a later"
    raise DataError(
        f"{path}: was made by {which} version of pacdp, under which a seed gives other numbers; "
        f"{advice}"
    )
