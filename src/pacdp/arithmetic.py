"""Which arithmetic a file's numbers come from; files from another one are refused.

A seed gives the same numbers only as long as clipping, rounding and noise are computed in the same
way. Plans, curves, scores and checkpoints rely on that: a stopped run goes on bit for bit, and a
curve is fitted to what the run will do. So these files carry the number of the arithmetic they were
made under.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pacdp.errors import DataError

ARITHMETIC = 2
"""Raise it when the same seed would give other numbers. Versions before 0.2.0 wrote none."""

_KEY = "arithmetic"
# For everything inside a run's folder: what is made anew is the run.
RUN_AGAIN = "train again with pacdp run and a new --out folder"


def stamped(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file, with the arithmetic that it was made under.

    >>> stamped({"rounds": 3})
    {'arithmetic': 2, 'rounds': 3}
    """
    return {_KEY: ARITHMETIC, **content}


def without_stamp(content: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`stamped` was given.

    >>> without_stamp(stamped({"rounds": 3}))
    {'rounds': 3}
    """
    return {key: value for key, value in content.items() if key != _KEY}


def refuse_other_arithmetic(path: Path | str, content: object, *, mark: str, anew: str) -> None:
    """Refuse a file that another version made, and say how to make it anew.

    ``mark`` is a key that every such file fills. Without it this is some other file, about which
    nothing is known, and its reader refuses it for a better reason.

    >>> refuse_other_arithmetic("a.json", {"seeds": 3}, mark="seeds", anew="run pacdp fit again")
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
        f"{anew}"
    )
