"""Batches of examples: tensors or tuples of tensors whose first dimension is the examples."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pacdp.clipping.numerics import shrink_levels
from pacdp.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Examples, and which of them are clipped as one.

    ``units`` holds the unit of each example, numbered from 0, or is None where each example is
    clipped by itself. ``size`` is the number of examples, or of units.
    """

    inputs: Any
    targets: Any
    size: int
    units: Tensor | None = None

    def split(self, step: int) -> Iterator[tuple[slice, "Batch"]]:
        """Split into parts of ``step`` examples (or units), each with its range."""
        for start in range(0, self.size, step):
            place = slice(start, min(start + step, self.size))
            if step >= self.size:
                yield place, self
                continue
            chosen: slice | Tensor = place
            units = None
            if self.units is not None:
                # Whole units, whatever order their examples come in.
                inside = (self.units >= start) & (self.units < place.stop)
                chosen = torch.nonzero(inside).flatten()
                units = self.units[chosen] - start
            inputs, targets = (take(values, chosen) for values in (self.inputs, self.targets))
            yield place, Batch(inputs, targets, place.stop - start, units)


class ExampleLevels:
    """The budget level of each example (or unit), and the bound of each level.

    ``ratios`` are C_j/C, public; ``index`` (examples,) is the level of each example, private.

    >>> levels = ExampleLevels((0.1, 1.0), torch.tensor([1, 0, 0]))
    >>> levels.limits(2.0, examples=3).round(decimals=2)
    tensor([2.0000, 0.2000, 0.2000])
    """

    def __init__(self, ratios: tuple[float, ...], index: Tensor) -> None:
        self.ratios, self.index = ratios, index
        known = len(ratios)
        whole = index.dtype == torch.int64 and index.ndim == 1
        if not whole or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < known):
            raise InputError(
                f"levels: must be whole numbers (int64) from 0 to {known - 1}, one for each example"
            )
        if not all(0 <= ratio <= 1 for ratio in ratios) or max(ratios) != 1:
            raise InputError("levels: ratios must be from 0 to 1, and the largest must be 1")

    def limits(
        self,
        bound: float,
        examples: int,
        *,
        sums: int | None = None,
        positions: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the norm to which each example is clipped, as one of ``examples`` in a sum."""
        device = self.index.device
        table = _tabulate_limits(bound, self.ratios, examples, sums, positions, dtype, device)
        return table.index_select(0, self.index)

    def take(self, chosen: slice | Tensor) -> "ExampleLevels":
        """Return the levels of some of the examples, which need no further check."""
        taken = copy.copy(self)
        taken.index = self.index[chosen]
        return taken

    def require_size(self, size: int) -> None:
        """Refuse levels of another number of examples."""
        if len(self.index) != size:
            raise InputError(f"levels: are {len(self.index)}, must be one for each example")


# The bounds of a round are the same in every step.
@lru_cache(maxsize=256)
def _tabulate_limits(
    bound: float,
    ratios: tuple[float, ...],
    examples: int,
    sums: int | None,
    positions: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    limits = shrink_levels(
        np.array(bound), np.array(ratios), examples, sums=sums, positions=positions
    )
    return torch.from_numpy(limits).to(device, dtype)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return the arguments of a model that takes one tensor or several."""
    return values if isinstance(values, tuple) else (values,)


def batch_size(inputs: Any) -> int:
    """Return the number of examples."""
    return int(as_tuple(inputs)[0].shape[0])


def require_mask(present: Tensor | None, shape: tuple[int, ...]) -> None:
    """Require one boolean for each example: a weight could raise an example's influence."""
    if present is not None and (present.dtype != torch.bool or present.shape != shape):
        raise InputError(
            f"present: is {present.dtype} of shape {tuple(present.shape)}, must be bool of shape "
            f"{shape}"
        )


def take(values: Any, chosen: slice | Tensor) -> Any:
    """Take some of the examples."""
    return tree_map(lambda tensor: tensor[chosen], values)


def signature(values: Any) -> Any:
    """Return what the choice of a strategy depends on: types, and shapes of single examples."""
    if isinstance(values, tuple):
        return tuple(map(signature, values))
    return values.shape[1:], values.dtype, values.device


def synthetic_examples(module: nn.Module, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Draw examples with the shapes and types of those given, from torch's random state."""
    tokens = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    # A batch size that differs from every other dimension.
    used = {size for part in (*as_tuple(inputs), *as_tuple(targets)) for size in part.shape[1:]}
    count = next(number for number in range(5, 6 + len(used)) if number not in used)

    def draw(like: Tensor, categories: int, normal: bool) -> Tensor:
        shape = (count, *like.shape[1:])
        if like.is_floating_point():
            values = torch.randn(shape) if normal else torch.rand(shape)
        else:
            values = torch.randint(0, categories, shape)
        return values.to(like.dtype).to(like.device)

    categories = min(tokens, default=2)
    # Targets may be classes, probabilities or numbers: values from 0 to 1 suit all of them.
    return (
        tree_map(lambda like: draw(like, categories, True), inputs),
        tree_map(lambda like: draw(like, 2, False), targets),
    )
