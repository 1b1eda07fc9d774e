"""Clipped sums of per-example gradients, at roughly the cost of an ordinary training step.

Clipping protects an example only if it cannot influence another example's gradient. A batch is
therefore processed as a whole only if the model's forward pass is proven to treat examples
separately (:mod:`pacdp.clipping.separation`); any other model processes one example at a time.

The strategy, and the shapes, order and number of operations, depend only on public facts. An
example with a non-finite gradient contributes zero, through the same operations as any other.
Strategies are chosen and tested on synthetic examples.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pacdp.clipping.bounded import ClippedSum
from pacdp.clipping.compatibility import require_private
from pacdp.clipping.examples import Batch, ExampleLevels, batch_size, require_mask, signature
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.losses import Loss
from pacdp.clipping.numerics import BLOCK, check_clipping_bound, refuse_reduced_precision
from pacdp.clipping.selection import choose_strategy
from pacdp.clipping.sequential import SequentialModel, as_sequential, is_modified
from pacdp.clipping.strategies import Strategy
from pacdp.errors import InputError
from pacdp.privacy import Adjacency
from pacdp.validation import require_count, require_name


class ClippedGradient:
    """Compute clipped sums for one module and one loss, as values that carry their sensitivity.

    Formal guarantee, for all examples and weights: zeroing out one example's contribution (zero-out
    adjacency) changes the released (grid-rounded) sum by at most C in L2 norm over all parameters;
    replacing an example by another one (replace-one adjacency) changes it by at most 2C. This holds
    for the floating-point arithmetic that runs (``docs/numerics.md``). Examples with a non-finite
    gradient contribute zero.

    ``loss`` must return one value per example, such as ``F.cross_entropy(..., reduction="none")``.
    The result is a sum, not a mean: divide by a public number when it is released. ``microbatch``
    is the maximum number of examples computed at a time, which limits the memory.

    ``unit`` names the unit of privacy. With any unit but ``record``, such as ``patient``, the
    gradients of a unit are summed and clipped together, and each call must pass ``units``.

    >>> from torch.nn import functional as F
    >>> model = nn.Linear(2, 2)
    >>> gradient = ClippedGradient(
    ...     model, lambda out, y: F.cross_entropy(out, y, reduction="none"), adjacency="zero-out"
    ... )
    >>> total = gradient(torch.randn(8, 2), torch.zeros(8, dtype=torch.long), clipping_bound=0.5)
    >>> sorted(total.values), total.sensitivity
    (['bias', 'weight'], 0.5)
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        adjacency: Adjacency | str,
        microbatch: int | None = None,
        unit: str = "record",
    ) -> None:
        self.module = module
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)
        self.unit = require_name("unit", unit)
        self.microbatch = (
            None if microbatch is None else int(require_count("microbatch", microbatch))
        )
        self._inspect()

    def __call__(
        self,
        inputs: Any,
        targets: Any,
        *,
        clipping_bound: float,
        units: Any = None,
        present: Tensor | None = None,
        levels: ExampleLevels | None = None,
    ) -> ClippedSum:
        """Compute Σ_i g_i·min(1, C/‖g_i‖) over the examples of a batch, which may be empty.

        ``units`` holds the unit number of each example: g_i is then the sum of the gradients of
        unit i, and ``microbatch`` counts units. ``present`` is a boolean mask over examples (or
        over units, sorted by number). Those that are masked out are computed as well and multiplied
        by zero, so that the operations do not reveal which they are. With ``levels``, an example
        (or unit) of level j is clipped to C_j instead, and moves the sum by at most C_j.
        """
        bound = check_clipping_bound("clipping_bound", clipping_bound)
        batch = self._batch(inputs, targets, units)
        require_mask(present, (batch.size,))
        if levels is not None:
            levels.require_size(batch.size)
        strategy = self._strategy(inputs, targets)
        return ClippedSum(
            values=run_flushed(partial(self._sum, strategy, batch, bound, present, levels)),
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            unit=self.unit,
            levels=() if levels is None else levels.ratios,
        )

    @property
    def sequential(self) -> SequentialModel | None:
        """The module as a plain sequence of known, deterministic layers; None if it is not one."""
        self._refresh()
        return self._sequential

    def describe_strategy(self, inputs: Any, targets: Any) -> str:
        """Describe the strategy for examples of these shapes and types; choose and test it if new.

        Only shapes and types are read: the test runs on synthetic examples, once for each
        combination. Raises InputError for a model that cannot be trained privately, before any
        budget is spent.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.describe_strategy(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
        'all examples at once: a plain sequence of known layers'
        """
        return self._strategy(inputs, targets).description

    def norms(self, inputs: Any, targets: Any, *, units: Any = None) -> Tensor:
        """Compute each example's (or unit's) gradient norm.

        Norms are private: anything derived from them must be released with noise before it leaves.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.norms(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).shape
        torch.Size([8])
        """
        batch = self._batch(inputs, targets, units)
        strategy = self._strategy(inputs, targets)

        def compute() -> list[Tensor]:
            parts = batch.split(self._microbatch_size(strategy, batch.size))
            return [strategy.gradients(part).norms for _, part in parts]

        norms = run_flushed(compute)
        return torch.cat(norms) if norms else torch.zeros(0)

    def _inspect(self) -> None:
        """Find the trainable parameters, and whether the module is a plain sequence of layers."""
        require_private(self.module)
        self._trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._sequential = as_sequential(self.module)
        self._parts = _list_parts(self.module)
        self._strategies: dict[Any, Strategy] = {}

    def _refresh(self) -> None:
        """Inspect the module again if it has changed since the last call."""
        parts = _list_parts(self.module)
        if len(parts) != len(self._parts) or any(
            name != old_name or part is not old_part or flag != old_flag
            for (name, part, flag), (old_name, old_part, old_flag) in zip(
                parts, self._parts, strict=True
            )
        ):
            self._inspect()

    def _batch(self, inputs: Any, targets: Any, units: Any) -> Batch:
        size = batch_size(inputs)
        if (units is None) != (self.unit == "record"):
            raise InputError(
                f"units: {'are missing' if units is None else 'were given'}, but gradients are "
                f"clipped per {self.unit}"
            )
        if units is None:
            return Batch(inputs, targets, size)
        units = torch.as_tensor(units)
        whole = not units.is_floating_point() and units.dtype != torch.bool
        if not whole or units.shape != (size,):
            raise InputError(
                f"units: is {units.dtype} of shape {tuple(units.shape)}, must be one whole number "
                "for each example"
            )
        numbers, unit_index = torch.unique(units, return_inverse=True)
        return Batch(inputs, targets, len(numbers), unit_index)

    def _strategy(self, inputs: Any, targets: Any) -> Strategy:
        """Return the strategy for examples of these shapes and types, chosen on first use."""
        refuse_reduced_precision()
        if torch.is_inference_mode_enabled():
            raise InputError("torch.inference_mode: has no gradients; must be off for training")
        self._refresh()
        key = (self.module.training, signature(inputs), signature(targets))
        if key not in self._strategies:
            sequential = self._sequential if self.unit == "record" else None
            self._strategies[key] = choose_strategy(
                self.module, self.loss, inputs, targets, sequential=sequential
            )
        return self._strategies[key]

    def _microbatch_size(self, strategy: Strategy, size: int) -> int:
        """Return the number of examples (or units) computed at a time."""
        return strategy.limit(self.microbatch or max(size, 1))

    def _sum(
        self,
        strategy: Strategy,
        batch: Batch,
        bound: float,
        present: Tensor | None,
        levels: ExampleLevels | None,
    ) -> dict[str, Tensor]:
        """Compute the clipped sum over all microbatches of a batch."""
        total: dict[str, Tensor] = {}
        size, step = batch.size, self._microbatch_size(strategy, batch.size)
        for rows, part in batch.split(step):
            summed = strategy.gradients(part).clipped_sum(
                bound,
                examples=size,
                sums=-(-size // step) * -(-min(step, size) // BLOCK),
                present=None if present is None else present[rows],
                levels=levels if levels is None or step >= size else levels.take(rows),
            )
            total = {n: total[n].double().add_(v) for n, v in summed.items()} if total else summed
        return {
            name: total[name] if name in total else torch.zeros_like(parameter, dtype=torch.float32)
            for name, parameter in self._trainable.items()
        }


def _list_parts(module: nn.Module) -> list[tuple[str, object, bool]]:
    """List all submodules (with whether modified) and parameters (with whether trained)."""
    return [("", module, is_modified(module))] + [
        (name, part, is_modified(part) if isinstance(part, nn.Module) else part.requires_grad)
        for owner in module.modules()
        for parts in (owner._modules, owner._parameters)
        for name, part in parts.items()
        if part is not None
    ]
