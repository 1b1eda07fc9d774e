"""The version of the arithmetic that a file's numbers depend on; others are refused.

A seed gives the same numbers only as long as clipping, rounding and noise are computed in the same
way. Plans, curves, scores and checkpoints rely on that: a resumed run continues bit for bit, and a
curve is fitted to what the run will do. So these files record the version of the arithmetic they
were made with.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pacdp.errors import DataError

ARITHMETIC = 2
"""Increased whenever the same seed gives other numbers. Releases before 0.2.0 recorded none."""

_KEY = "arithmetic"
# Advice for all files in the folder of a run: the run must be repeated.
RUN_AGAIN = "train again with pacdp run and a new --out folder"


def add_arithmetic_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the version of the arithmetic to the content of a file.

    >>> add_arithmetic_version({"rounds": 3})
    {'arithmetic': 2, 'rounds': 3}
    """
    return {_KEY: ARITHMETIC, **content}


def remove_arithmetic_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """Remove what :func:`add_arithmetic_version` added.

    >>> remove_arithmetic_version(add_arithmetic_version({"rounds": 3}))
    {'rounds': 3}
    """
    return {key: value for key, value in content.items() if key != _KEY}


def refuse_other_arithmetic(path: Path | str, content: object, *, mark: str, advice: str) -> None:
    """Refuse a file made with another arithmetic; ``advice`` says how to make a new one.

    ``mark`` is a key that is never empty in a file of this kind. A file without it is of another
    kind, which its reader refuses with a better message.

    >>> refuse_other_arithmetic("a.json", {"seeds": 3}, mark="seeds", advice="run pacdp fit again")
    Traceback (most recent call last):
    ...
    pacdp.errors.DataError: a.json: was made by an earlier version of pacdp, under which a seed \
gives other numbers; run pacdp fit again
    """
    if not isinstance(content, Mapping) or not content.get(mark):
        return
    version = content.get(_KEY, 1)
    if version == ARITHMETIC:
        return
    known = isinstance(version, int)
    which = "another" if not known else "an earlier" if version < ARITHMETIC else "a later"
    raise DataError(
        f"{path}: was made by {which} version of pacdp, under which a seed gives other numbers; "
        f"{advice}"
    )
