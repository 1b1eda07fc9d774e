"""Clipped sums of per-example gradients, at about the price of an ordinary training step.

Clipping is private only if no example can influence another one's gradient. So a whole batch runs
through a model at once only if its forward pass is shown to treat examples separately
(:mod:`pacdp.clipping.separation`); any other model runs on each example by itself.

Apart from the numbers themselves, everything about a computation depends only on public facts:
which strategy is used, and the shapes, order and number of operations. An example whose gradient is
not finite contributes zero, through the same operations as any other. Strategies are chosen and
tested on synthetic examples.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pacdp.clipping.bounded import ClippedSum
from pacdp.clipping.compatibility import require_private
from pacdp.clipping.examples import Batch, batch_size, require_mask, signature
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
    """Clipped sums for one module and one loss, as values that carry their sensitivity.

    Formal guarantee: whatever the examples and the weights, replacing one example by a null example
    moves the sum, as it is rounded to the public grid when released, by at most C in L2 over all
    parameters together, and swapping one for another by at most 2C. This holds for the arithmetic
    that runs (``docs/numerics.md``). Examples whose gradient is not finite contribute zero.

    ``loss`` must return one value per example, such as ``F.cross_entropy(..., reduction="none")``.
    The sum is a sum, not a mean: divide by a public number when it is released. ``microbatch``
    limits how many examples are computed at a time, and so the memory.

    ``unit`` names what is clipped as one. With anything but ``record``, such as ``patient``, each
    call must say which examples belong together.

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
    ) -> ClippedSum:
        """Compute Σ_i g_i·min(1, C/‖g_i‖) over the examples of a batch, which may be empty.

        ``units``, one whole number for each example, says which belong together: then g_i is the
        sum over the examples of unit i, and ``microbatch`` counts units, too. ``present``, a
        boolean for each example (or unit, in the order of their numbers), says which are included:
        the others are computed as well and contribute zero, so that nobody can tell which they are.
        """
        bound = check_clipping_bound("clipping_bound", clipping_bound)
        batch = self._batch(inputs, targets, units)
        require_mask(present, (batch.size,))
        strategy = self._strategy(inputs, targets)
        return ClippedSum(
            values=run_flushed(partial(self._sum, strategy, batch, bound, present)),
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            unit=self.unit,
        )

    @property
    def sequential(self) -> SequentialModel | None:
        """The module as a plain sequence of known, deterministic layers; None if it is not one."""
        self._refresh()
        return self._sequential

    def describe_strategy(self, inputs: Any, targets: Any) -> str:
        """Choose and test how examples of these shapes and types are computed, and describe it.

        Only shapes and types are read: the test runs on synthetic examples, once for each
        combination. A model that cannot be trained privately is refused here, before anything is
        paid for.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.describe_strategy(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
        'all examples at once: a plain sequence of known layers'
        """
        return self._strategy(inputs, targets).description

    def norms(self, inputs: Any, targets: Any, *, units: Any = None) -> Tensor:
        """Compute each example's (or unit's) gradient norm.

        Norms are private: nothing derived from them may leave unpaid.

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
        """Look at the module: what is trained, and whether it is a plain sequence."""
        require_private(self.module)
        self._trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._sequential = as_sequential(self.module)
        self._parts = _list_parts(self.module)
        self._strategies: dict[Any, Strategy] = {}

    def _refresh(self) -> None:
        """Look at the module again if it has changed: an outdated view would go unnoticed."""
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
                f"units: {'are missing' if units is None else 'were given'}, but one {self.unit} "
                "at a time is clipped"
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
        numbers, places = torch.unique(units, return_inverse=True)
        return Batch(inputs, targets, len(numbers), places)

    def _strategy(self, inputs: Any, targets: Any) -> Strategy:
        """Return how examples of these shapes and types are computed, chosen once for each."""
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
        """Return how many examples (or units) are computed at once."""
        return strategy.limit(self.microbatch or max(size, 1))

    def _sum(
        self, strategy: Strategy, batch: Batch, bound: float, present: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute the clipped sum over all parts of a batch."""
        total: dict[str, Tensor] = {}
        size, step = batch.size, self._microbatch_size(strategy, batch.size)
        for place, part in batch.split(step):
            summed = strategy.gradients(part).clipped_sum(
                bound,
                examples=size,
                sums=-(-size // step) * -(-min(step, size) // BLOCK),
                present=None if present is None else present[place],
            )
            total = {n: total[n].double().add_(v) for n, v in summed.items()} if total else summed
        return {
            name: total[name] if name in total else torch.zeros_like(parameter, dtype=torch.float32)
            for name, parameter in self._trainable.items()
        }


def _list_parts(module: nn.Module) -> list[tuple[str, object, bool]]:
    """List submodules and parameters in their places, with whether each is modified or trained."""
    return [("", module, is_modified(module))] + [
        (name, part, is_modified(part) if isinstance(part, nn.Module) else part.requires_grad)
        for owner in module.modules()
        for parts in (owner._modules, owner._parameters)
        for name, part in parts.items()
        if part is not None
    ]
