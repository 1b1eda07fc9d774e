"""Per-example gradients of one parameter, kept in whatever form is cheapest.

A layer's weight gradient for one example is a sum over positions t (time steps, pixels) of outer
products g_t·a_tᵀ of the layer's input a_t and the gradient g_t of its output. Three things are
asked of it: a bound on its norm per example, its sum over examples with given weights, and, where
nothing cheaper will do, the gradients themselves. The weighted sum is one matrix product as large
as that of ordinary training. The norm needs either the gradients themselves or only the inner
products between positions, whichever moves less memory.

Shapes, order and number of operations depend on shapes alone, never on values: an example whose
gradient is not finite is given the weight 0 and goes through the same arithmetic.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from pacdp.clipping.numerics import (
    BLOCK,
    LOST_SQUARE,
    UNIT_DOUBLE,
    UNIT_SINGLE,
    examples_per_sum,
    squared_norms,
    sum_error,
    sum_products,
    zero_nonfinite,
    zero_nonfinite_,
)

# Inner products between positions are preferred while they cost fewer multiplications than this for
# each number of the gradient that need not be written and read again.
MULTIPLICATIONS_PER_NUMBER = 64


class Contribution(Protocol):
    """What one use of a parameter adds to each example's gradient. Everything is float32."""

    def squared_norms(self) -> Tensor:
        """Squared norm of each example's gradient, short by NORM_ERROR at most: (B,), float64."""

    def squared_rounding(self) -> Tensor | None:
        """(n·L)² of each example: n terms in a single-precision sum, L the sum of their lengths.

        None where gradients are summed as they are, so that L is the norm and n the block size.
        """

    def per_example(self) -> Tensor:
        """Each example's gradient: (B, *shape)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_i w_i·gradient_i: (*shape). Examples of weight 0 add zero, even if not finite."""


@dataclass(frozen=True)
class MaterialisedGradient:
    """Per-example gradients that are small enough to be kept as they are."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        return squared_norms(self.gradients.flatten(1))

    def squared_rounding(self) -> None:
        return None

    def per_example(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = zero_nonfinite_(self.gradients.flatten(1))
        return sum_products(weights[:, None], flat).reshape(self.gradients.shape[1:])


class PositionSum(ABC):
    """A gradient Σ_t g_t·a_tᵀ over positions t, materialised only where that is cheaper."""

    inputs: Tensor
    gradients: Tensor

    @property
    @abstractmethod
    def _positions(self) -> int:
        """The number of positions of one example."""

    @property
    @abstractmethod
    def _sizes(self) -> tuple[int, int]:
        """How many numbers a_t and g_t have."""

    @property
    @abstractmethod
    def _squares(self) -> tuple[Tensor, Tensor]:
        """‖a_t‖² and ‖g_t‖² of each position."""

    @property
    def _examples_at_once(self) -> int:
        return examples_per_sum(len(self.inputs), self._positions)

    @property
    def _by_positions(self) -> bool:
        """Whether norms are computed from inner products between positions."""
        size_in, size_out = self._sizes
        products = self._positions**2 * (size_in + size_out)
        cheaper = products < MULTIPLICATIONS_PER_NUMBER * size_in * size_out
        return cheaper and self._examples_at_once > 0

    def squared_rounding(self) -> Tensor | None:
        if not self._by_positions:
            return None
        return squared_lengths(*self._squares) * (self._examples_at_once * self._positions) ** 2


@dataclass(frozen=True)
class LinearGradient(PositionSum):
    """The weight of a Linear layer: inputs a (B, T, I), gradients g (B, T, O), weight (O, I)."""

    inputs: Tensor
    gradients: Tensor

    def squared_norms(self) -> Tensor:
        if self._positions == 1:
            return squared_norms(self.inputs.flatten(1)) * squared_norms(self.gradients.flatten(1))
        if self._by_positions:
            return norms_from_products(
                self.inputs @ self.inputs.mT,
                self.gradients @ self.gradients.mT,
                *self._squares,
                sizes=self._sizes,
                roundings=sum(self._sizes),
            )
        return MaterialisedGradient(self._materialised).squared_norms()

    def per_example(self) -> Tensor:
        return self._materialised

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "_materialised" in self.__dict__:
            return MaterialisedGradient(self._materialised).weighted_sum(weights)
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None])
        inputs = zero_nonfinite(self.inputs)
        rows = BLOCK if self._positions == 1 else self._examples_at_once * self._positions
        return sum_products(scaled.flatten(0, 1), inputs.flatten(0, 1), rows)

    @property
    def _positions(self) -> int:
        return self.inputs.shape[1]

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.inputs.shape[2], self.gradients.shape[2]

    @property
    def _by_positions(self) -> bool:
        return self._positions > 1 and super()._by_positions

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        return squared_norms(self.inputs), squared_norms(self.gradients)

    @cached_property
    def _materialised(self) -> Tensor:
        return self.gradients.mT @ self.inputs


@dataclass(frozen=True)
class EmbeddingGradient:
    """The weight of an Embedding: rows picked by ``indices`` (B, T), gradients (B, T, D)."""

    indices: Tensor
    gradients: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        same = (self.indices[:, :, None] == self.indices[:, None, :]).to(self.gradients.dtype)
        products = self.gradients @ self.gradients.mT
        size = self.gradients.shape[2]
        return norms_from_products(same, products, *self._squares, sizes=(1, size), roundings=size)

    def squared_rounding(self) -> Tensor:
        # One sum over the whole batch in double precision, in units of the single-precision
        # roundoff: the errors of all blocks count, each with all terms.
        blocks = max(1.0, len(self.indices) / BLOCK)
        terms = 2 * blocks * self.indices.numel() * UNIT_DOUBLE / UNIT_SINGLE
        return squared_lengths(*self._squares) * terms**2

    def per_example(self) -> Tensor:
        examples, _, size = self.gradients.shape
        total = self.gradients.new_zeros(examples, self.rows, size)
        index = self.indices[:, :, None].expand(-1, -1, size)
        return total.scatter_add_(1, index, self.gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = zero_nonfinite_(self.gradients * weights[:, None, None]).double()
        total = scaled.new_zeros(self.rows, scaled.shape[2])
        return total.index_add_(0, self.indices.flatten(), scaled.flatten(0, 1))

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """1 and ‖g_t‖² of each position."""
        squares = squared_norms(self.gradients)
        return torch.ones_like(squares), squares


def add_uses(uses: Sequence[Contribution]) -> Contribution:
    """Add up the uses of one parameter: a layer called twice, or tied weights.

    The norm of a sum is not the sum of norms, so several uses are materialised.
    """
    if len(uses) == 1:
        return uses[0]
    total = uses[0].per_example()
    for use in uses[1:]:
        total = total + use.per_example().reshape(total.shape)
    return MaterialisedGradient(total)


def sum_by_unit(use: Contribution, units: Tensor, count: int) -> MaterialisedGradient:
    """Add up each unit's gradients, where ``units`` holds each example's unit from 0 to count."""
    gradients = use.per_example()
    total = gradients.new_zeros(count, *gradients.shape[1:])
    return MaterialisedGradient(total.index_add_(0, units, gradients))


def norms_from_products(
    inputs: Tensor,
    gradients: Tensor,
    input_squares: Tensor,
    gradient_squares: Tensor,
    *,
    sizes: tuple[int, int],
    roundings: int,
) -> Tensor:
    """Bound ‖Σ_t g_t·a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s) from above, by inner products.

    ``sizes`` are the numbers of products in the inner products of a and of g, and ``roundings`` is
    how many roundings a pair of them goes through. Terms can cancel, so a bound on the error
    relative to L² = (Σ_t ‖g_t‖·‖a_t‖)² is added, and one on what can underflow.
    """
    norms = (inputs * gradients).sum(2).sum(1).double().abs_()
    positions = inputs.shape[1]
    relative = 1.01 * sum_error(roundings + 2 * positions + 2)
    norms += relative * squared_lengths(input_squares, gradient_squares)
    lost = sizes[0] * gradient_squares.sum(1) + sizes[1] * input_squares.sum(1) + positions
    return norms.add_(lost, alpha=2 * positions * LOST_SQUARE)


def squared_lengths(input_squares: Tensor, gradient_squares: Tensor) -> Tensor:
    """Compute L² = (Σ_t ‖g_t‖·‖a_t‖)² of each example."""
    return (input_squares * gradient_squares).sqrt_().sum(1).square_()
