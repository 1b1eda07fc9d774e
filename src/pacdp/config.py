"""Frozen settings, and one-line messages for invalid ones."""

import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from pacdp.errors import InputError
from pacdp.validation import suggest

# Strict: neither true nor "0.1" is a number.
Real = Annotated[float, Strict()]
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(gt=0)]


class Settings(BaseModel):
    """Immutable settings without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some values changed, and without cached properties of the original."""
        copied = super().model_copy(update=update, deep=deep)
        for kind in type(self).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, cached_property):
                    copied.__dict__.pop(name, None)
        return copied

    @classmethod
    def load_toml(cls, path: Path) -> Self:
        """Read a TOML file; paths in it are relative to its folder.

        Raises InputError with a one-line message if it is invalid.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: is not a TOML file ({error})") from None
        try:
            settings = cls.model_validate(content)
        except ValidationError as error:
            raise InputError(f"{path}: {explain_validation_error(error, cls)}") from None
        folder = path.absolute().parent
        paths = {name: value for name, value in settings if isinstance(value, Path)}
        return settings.model_copy(update={name: folder / value for name, value in paths.items()})


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], where: str = ""
) -> str:
    """Describe the most relevant pydantic error in one line, with a suggestion for a wrong key.

    >>> class Training(Settings):
    ...     rounds: int = 1
    >>> try:
    ...     Training(round=3)
    ... except ValidationError as error:
    ...     explain_validation_error(error, Training, "training")
    'training.round: is no setting; did you mean rounds? There are rounds'
    """
    faults = error.errors(include_url=False)
    # A wrong key explains a missing one. Of several allowed forms, the one in which validation got
    # furthest is the one that was intended.
    order = ("extra_forbidden", "value_error")
    fault = max(faults, key=lambda f: (f["type"] == order[0], f["type"] == order[1], len(f["loc"])))
    path = [str(part) for part in fault["loc"]]
    place = ".".join([part for part in (where, *path) if part and not _is_form(part)])
    if fault["type"] == "extra_forbidden":
        names = _names(model, path[:-1])
        near = suggest(path[-1], names)
        return f"{place}: is no setting; {near}There are {', '.join(names) or 'none'}"
    if fault["type"] == "missing":
        return f"{place}: is missing"
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    shown = f" = {given!r}" if isinstance(given, str | int | float) else ""
    message = message[0].lower() + message[1:]
    return f"{place}{shown}: {message}" if place else message


def _is_form(part: str) -> bool:
    """Whether a part of a location only names which of several allowed forms was tried."""
    return part in ("float", "int", "str", "Levels", "Axis") or "[" in part


def _names(model: type[BaseModel], path: list[str]) -> list[str]:
    """List the settings at a location inside a model."""
    current: Any = model
    for part in path:
        if _is_form(part):
            continue
        field = current.model_fields.get(part) if _is_model(current) else None
        if field is None:
            return []
        kinds = [field.annotation, *get_args(field.annotation)]
        current = next((kind for kind in kinds if _is_model(kind)), None)
    return [f.alias or n for n, f in current.model_fields.items()] if _is_model(current) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
