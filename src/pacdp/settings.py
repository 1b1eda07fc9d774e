"""Settings as frozen values, and refusals of wrong ones in one line."""

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError


class Settings(BaseModel):
    """Plain values that cannot be changed, and no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def explain(error: ValidationError, model: type[BaseModel], where: str = "") -> str:
    """The first fault of a pydantic refusal, with the nearest right key for a wrong one.

    >>> class Training(Settings):
    ...     rounds: int = 1
    >>> try:
    ...     Training(round=3)
    ... except ValidationError as error:
    ...     explain(error, Training, "training")
    'training.round: is no setting; did you mean rounds? There are rounds'
    """
    fault = error.errors(include_url=False)[0]
    parts = [str(part) for part in fault["loc"]]
    place = ".".join([part for part in (where, *parts) if part])
    if fault["type"] == "extra_forbidden":
        names = _names(model, parts[:-1])
        near = difflib.get_close_matches(parts[-1], names, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return f"{place}: is no setting; {meant}There are {', '.join(names) or 'none'}"
    if fault["type"] == "missing":
        return f"{place}: is missing"
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    shown = f" = {given!r}" if isinstance(given, str | int | float) else ""
    return f"{place}{shown}: {message[0].lower()}{message[1:]}"


def _names(model: type[BaseModel], path: list[str]) -> list[str]:
    """The settings there are at a place inside a model."""
    current: Any = model
    for part in path:
        field = current.model_fields.get(part) if _is_model(current) else None
        if field is None:
            return []
        kinds = [field.annotation, *get_args(field.annotation)]
        current = next((kind for kind in kinds if _is_model(kind)), None)
    return [f.alias or n for n, f in current.model_fields.items()] if _is_model(current) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
