"""Calls of torch functions and layers, as the separation rules see them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class SeparationError(Exception):
    """A call is not known to treat examples separately; the message says why."""


class BatchSize(torch.SymInt):
    """The number of examples, which a model may pass on as a size but not compute with.

    A model that computes with it or branches on it may behave differently for another batch size,
    which a trace at this size would not show. It is not a real int, because C code would read an
    int's value directly; torch accepts a SymInt wherever it takes a size.
    """

    def __init__(self, refuse: Callable[[SeparationError], Any]) -> None:
        self._report = refuse

    # The type that isinstance reports to a model.
    __class__ = property(lambda self: int)

    def __eq__(self, other: object) -> bool:
        return True if other is self else self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_: Any) -> Any:
        self._report(
            SeparationError("the number of examples is used in a computation or a condition")
        )

    __hash__ = _refuse


_BINARY = "add sub mul truediv floordiv mod divmod pow and or xor lshift rshift"
_OTHERS = (
    "lt le gt ge bool int float complex index str repr format neg pos abs invert round trunc "
    "floor ceil sym_float sym_max sym_min sym_not sym_ite sym_sum"
)
for _name in (*_OTHERS.split(), *(f"{p}{n}" for p in ("", "r", "i") for n in _BINARY.split())):
    setattr(BatchSize, f"__{_name}__", BatchSize._refuse)


def leaves(value: Any) -> Iterator[Any]:
    """Iterate over everything in nested containers."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, Mapping):
        yield from leaves(list(value.values()))
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def tensors_in(value: Any) -> list[Tensor]:
    """List the tensors in nested containers."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Call:
    """A call of a torch function.

    ``examples`` are the tensors among its arguments that hold examples, each with its batch
    dimension.
    """

    name: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    examples: list[tuple[Tensor, int]]

    @property
    def title(self) -> str:
        """The name of what is called, for messages."""
        return f"function {self.name}"

    def refuse(self, reason: str) -> SeparationError:
        """Return the error to raise if the call may mix examples."""
        return SeparationError(f"{self.title}: {reason}")

    def value(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that is given by position or by name."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if len(self.args) > position else default

    def batch_of(self, value: Any) -> int | None:
        """Return the batch dimension of an argument; None if it holds no examples."""
        return next((batch for tensor, batch in self.examples if tensor is value), None)

    def first_is_batch(self) -> bool:
        """Whether the first positional argument holds examples."""
        return bool(self.args) and self.batch_of(self.args[0]) is not None

    def single_batch(self) -> tuple[Tensor, int]:
        """Return the first argument and its batch dimension; no other may hold examples."""
        if len(self.examples) != 1 or not self.first_is_batch():
            raise self.refuse("is only known with one batch, as first argument")
        return self.examples[0]

    def allow(self, *names: str) -> None:
        """Refuse keywords that a rule does not take into account."""
        for name in self.keywords:
            if name not in names:
                raise self.refuse(f"is not known with the argument {name}")

    def dimension(self, number: Any, dimensions: int) -> int:
        """Count a dimension from the front."""
        if type(number) is not int or not -dimensions <= number < dimensions:
            raise self.refuse("has no plain number for its dimension")
        return number % dimensions

    def refuse_dimensions(self, chosen: Any, tensor: Tensor, batch: int) -> None:
        """Refuse one or more dimensions if they include the batch dimension or mean all."""
        numbers = list(chosen) if isinstance(chosen, (tuple, list)) else [chosen]
        if chosen is None or not numbers:
            raise SeparationError(f"{self.title} over all dimensions mixes the examples of a batch")
        for number in numbers:
            if self.dimension(number, tensor.ndim) == batch:
                raise SeparationError(
                    f"{self.title} over dimension {number} mixes the examples of a batch"
                )

    def refuse_last(self, count: int, tensor: Tensor, batch: int) -> None:
        """Refuse a call that works across the last ``count`` dimensions if one is the batch."""
        if batch >= tensor.ndim - count:
            raise self.refuse("mixes the examples of a batch")


@dataclass(frozen=True)
class LayerCall(Call):
    """A call of a layer; ``keywords`` holds all arguments by name."""

    layer: Any

    @property
    def title(self) -> str:
        """The name and type of the layer, for messages."""
        return f"layer {self.name} ({type(self.layer).__name__})"

    def single_batch(self) -> tuple[Tensor, int]:
        """Return the first argument and its batch dimension; it must be the only tensor."""
        first = next(iter(self.keywords.values()), None)
        batch = self.batch_of(first)
        if batch is None or len(tensors_in(self.keywords)) != 1:
            raise self.refuse("is only known with one batch as its argument")
        assert isinstance(first, Tensor)
        return first, batch


# Receives the result of a call and the dimension in which the examples were found.
Check = Callable[[Tensor, int], None]
Rule = Callable[[Call], Check | None]


def one_batch(call: Call) -> None:
    """Accept one batch: for functions that work element by element or move whole dimensions."""
    call.single_batch()


def examples_first(fewest: int, most: int | None = None) -> Rule:
    """Accept one batch with examples first, with as many dimensions as torch takes for a batch."""

    def rule(call: Call) -> None:
        tensor, batch = call.single_batch()
        if batch or not fewest <= tensor.ndim <= (most or fewest):
            raise call.refuse(
                f"is not known for {tensor.ndim} dimensions with the examples in dimension {batch}"
            )

    return rule
