"""Detects whether a forward pass changes the model or variables outside of it."""

from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.Size, torch.dtype, torch.device)
_PACKAGE = __name__.rpartition(".")[0]
_OPAQUE = (type, BuiltinFunctionType, ModuleType)
# Longer containers are data rather than state, and only compared by their length.
_LONGEST = 10_000


class ModelState:
    """A snapshot of a model's attributes and of the outside variables that its methods use."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = list(self._walk())

    def changed(self) -> bool:
        """Whether anything was replaced, added or written in place since the snapshot."""
        after = list(self._walk())
        return len(after) != len(self._before) or any(
            not (old is new or (type(old) in _PLAIN and type(old) is type(new) and old == new))
            or version != new_version
            for (old, version), (new, new_version) in zip(self._before, after, strict=True)
        )

    def _walk(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over everything that can be reached, each value with its version."""
        seen: set[int] = set()
        stack: list[Any] = [self._model]
        classes = {
            kind
            for layer in self._model.modules()
            for kind in type(layer).__mro__
            if not kind.__module__.startswith("torch.") and kind is not object
        }
        for kind in sorted(classes, key=id):
            stack.append(dict(vars(kind)))
            stack += [value for value in vars(kind).values() if isinstance(value, FunctionType)]
        # Kept alive until the end, since values already seen are recognised by their id.
        self._outside: list[Any] = list(stack)
        while stack:
            yield from self._visit(stack.pop(), seen, stack)

    def _visit(self, value: Any, seen: set[int], stack: list[Any]) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, Tensor):
            yield value, value._version
            stack.append(vars(value))
            return
        if isinstance(value, np.ndarray):
            yield value, value.tobytes() if value.size <= _LONGEST else None
            return
        if type(value) not in (_OutsideVariables, dict):
            yield value, None
        if type(value) in _PLAIN or isinstance(value, _OPAQUE) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if not value.__module__.startswith(("torch.", _PACKAGE)):
                self._outside.append(_outside_variables(value))
                stack.append(self._outside[-1])
        elif isinstance(value, MethodType):
            stack += [value.__self__, value.__func__]
        elif isinstance(value, dict):
            yield len(value), None
            if len(value) <= _LONGEST:
                yield from ((key, None) for key in value)
                stack.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            yield len(value), None
            if len(value) <= _LONGEST:
                stack.extend(value)
        elif hasattr(value, "__dict__"):
            stack.append(vars(value))


class _OutsideVariables(dict[str, Any]):
    """The globals and closure variables that a function uses."""


def _outside_variables(function: FunctionType) -> _OutsideVariables:
    names = function.__code__.co_names
    variables = _OutsideVariables(
        {name: function.__globals__[name] for name in names if name in function.__globals__}
    )
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            variables[name] = cell.cell_contents
        except ValueError:
            variables[name] = None
    return variables
