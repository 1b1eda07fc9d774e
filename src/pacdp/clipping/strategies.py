"""Three ways to compute the per-example gradients of a batch.

- ``SequentialStrategy``: a plain sequence of known layers, in closed form and without autograd.
- ``Bookkeeping``: one forward pass records what went into each layer; one backward pass computes
  the gradients of what came out of it, and no weight gradients (Bu et al. 2023). For models that
  are shown to treat examples separately.
- ``SeparateExamples``: each example runs by itself, which is slower and needs no such proof.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils._pytree import tree_map

from pacdp.clipping.examples import Batch, ExampleLevels, as_tuple, batch_size
from pacdp.clipping.losses import Loss, loss_gradients, require_one_per_example, vmap_or_loop
from pacdp.clipping.numerics import BLOCK, SUM_ERROR, UNIT_SINGLE, clip_factors, shrink_bound
from pacdp.clipping.per_example import (
    Contribution,
    MaterialisedGradient,
    add_uses,
    sum_by_unit,
)
from pacdp.clipping.recording import LayerUse, collect_contributions, record_uses, refuse_changes
from pacdp.clipping.sequential import SequentialModel, WeightedSums

# How many numbers of gradients are materialised at once where each example runs by itself.
LARGEST_BLOCK = 2**24


@dataclass(frozen=True)
class Gradients:
    """Norms of the gradients of some examples (or units), and a way to sum them.

    ``norms`` are not finite where a gradient is not. ``rounding`` is n·L of sums
    over positions, as in ``Contribution``, or None where there are none.
    """

    norms: Tensor
    rounding: Tensor | None
    sums: WeightedSums

    def clipped_sum(
        self,
        bound: float,
        *,
        examples: int,
        sums: int,
        present: Tensor | None,
        levels: ExampleLevels | None = None,
    ) -> dict[str, Tensor]:
        """Compute Σ f_i·g_i with clip factors f_i that keep one example's influence within C.

        The whole sum is over ``examples`` examples, in ``sums`` partial sums; this is one part.
        """
        norms = self.norms
        if self.rounding is not None:
            # Clipped harder where the terms of a gradient cancel so much that rounding matters.
            scale = 2.01 * UNIT_SINGLE * min(len(norms), BLOCK) / SUM_ERROR
            norms = torch.maximum(norms, scale * self.rounding)
        if levels is None:
            limits: float | Tensor = shrink_bound(bound, examples, sums=sums)
        else:
            limits = levels.limits(
                bound,
                examples,
                sums=sums,
                positions=self.rounding is not None,
                dtype=norms.dtype,
            )
        factors = clip_factors(norms, limits)
        return self.sums(factors if present is None else factors * present)


def combine(
    contributions: dict[str, Contribution], batch: Batch, parameters: Mapping[str, Tensor]
) -> Gradients:
    """Combine the gradients of all parameters. Contributions are freed as they are summed."""
    if not contributions:
        return Gradients(torch.zeros(batch.size), None, lambda weights: {})
    if batch.units is not None:
        contributions = {
            name: sum_by_unit(use, batch.units, batch.size) for name, use in contributions.items()
        }
    squares = {name: use.squared_norms() for name, use in contributions.items()}
    rounding = {name: use.squared_rounding() for name, use in contributions.items()}
    total: Tensor | None = None
    if any(value is not None for value in rounding.values()):
        # Materialised gradients are summed with as many terms as a block has examples.
        plain = min(batch.size, BLOCK) ** 2
        parts = [
            plain * squares[name] if value is None else value for name, value in rounding.items()
        ]
        total = torch.stack(parts).sum(0).sqrt_()

    def sums(weights: Tensor) -> dict[str, Tensor]:
        return {
            name: contributions.pop(name).weighted_sum(weights).reshape(parameters[name].shape)
            for name in list(contributions)
        }

    return Gradients(torch.stack(list(squares.values())).sum(0).sqrt_(), total, sums)


@dataclass(frozen=True)
class Strategy(ABC):
    """How the gradients of a batch are computed, for one module and one loss."""

    module: nn.Module
    loss: Loss
    description: str = ""

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def limit(self, examples: int) -> int:
        """Return how many of so many examples (or units) are computed at once."""
        return examples

    @abstractmethod
    def gradients(self, batch: Batch) -> Gradients:
        """Compute the gradients of some examples, or of the units they belong to."""


@dataclass(frozen=True, kw_only=True)
class SequentialStrategy(Strategy):
    """Closed-form gradients of a plain sequence of known layers; for examples, not for units."""

    model: SequentialModel

    def gradients(self, batch: Batch) -> Gradients:
        with torch.no_grad():
            norms, sums = self.model.gradients(
                self.parameters, batch.inputs, batch.targets, self.loss, lead=1
            )
        return Gradients(norms, None, sums)


@dataclass(frozen=True)
class Bookkeeping(Strategy):
    """One forward and one backward pass over the whole batch."""

    def gradients(self, batch: Batch) -> Gradients:
        uses, outputs = self.forward(batch.inputs)
        contributions = {}
        if outputs.grad_fn is not None:
            back = loss_gradients(self.loss, outputs.detach(), batch.targets)
            contributions = self.contributions(uses, outputs, back)
        return combine(contributions, batch, self.parameters)

    def forward(self, inputs: Any) -> tuple[list[LayerUse], Any]:
        """Run the model, and record what went into each layer."""
        with record_uses(self.module, batch_size(inputs)) as uses, torch.enable_grad():
            outputs = self.module(*as_tuple(inputs))
        refuse_changes(uses)
        return uses, outputs

    def contributions(
        self, uses: Sequence[LayerUse], outputs: Tensor, back: Tensor
    ) -> dict[str, Contribution]:
        """Compute each parameter's per-example gradients from those of the model's outputs."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        collected = collect_contributions(self.module, uses, outputs, back, names)
        return {name: add_uses(contributions) for name, contributions in collected.items()}


@dataclass(frozen=True)
class SeparateExamples(Strategy):
    """Each example by itself, because the model is not shown to treat examples separately."""

    def limit(self, examples: int) -> int:
        numbers = sum(parameter.numel() for parameter in self.parameters.values())
        return min(examples, max(1, LARGEST_BLOCK // max(numbers, 1)))

    def gradients(self, batch: Batch) -> Gradients:
        contributions = self.contributions(batch.inputs, batch.targets)
        return combine(contributions, batch, self.parameters)

    def contributions(
        self, inputs: Any, targets: Any, *, strict: bool = False
    ) -> dict[str, Contribution]:
        """Compute each parameter's per-example gradients.

        An example for which the model raises an error gets NaN; only with ``strict`` is the error
        raised.
        """
        trained = {name: parameter.detach() for name, parameter in self.parameters.items()}

        def example_loss(parameters: dict[str, Tensor], example: Any, target: Any) -> Tensor:
            arguments, targets = tree_map(lambda tensor: tensor[None], (as_tuple(example), target))
            module = copy_sharing_parameters(self.module)
            outputs = functional_call(module, parameters, arguments)
            return require_one_per_example(self.loss(outputs, targets), 1).sum()

        gradients = vmap_or_loop(
            partial(grad(example_loss), trained),
            (inputs, targets),
            lambda: {name: torch.full_like(value, torch.nan) for name, value in trained.items()},
            strict=strict,
        )
        return {
            name: MaterialisedGradient(gradient.float().contiguous())
            for name, gradient in gradients.items()
        }


def copy_sharing_parameters(module: nn.Module) -> nn.Module:
    """Copy a module so that only its parameters are shared with the copy.

    What a forward pass writes into buffers and attributes of a copy reaches no other example.
    """
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    for layer in module.modules():
        for value in (*layer._buffers.values(), *vars(layer).values()):
            if isinstance(value, Tensor) and id(value) not in memo:
                # deepcopy refuses tensors that are not leaves of the autograd graph.
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)
