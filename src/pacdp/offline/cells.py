"""Models that differ in nothing but their weights: the cells of a grid, of several jobs at once.

A job is one client's participation under one seed. All cells of a job see the same records, so its
inputs are one tensor. For logistic regression the cells are the last dimension of everything: a
step of all of them is two products of matrices, and takes well under a microsecond for each.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from pacdp.clipping import CrossEntropy, SquaredError, StackedGradient
from pacdp.clipping.numerics import clip_factors, shrink_bound, zero_nonfinite_
from pacdp.federation import Workbench

Tensors = dict[str, Tensor]


class Cells(Protocol):
    """How the weights of jobs × cells are laid out, and what is computed with them."""

    def start(self, states: list[Tensors]) -> Tensors:
        """The first weights of several seeds, the same in each cell."""

    def sums(
        self,
        weights: Tensors,
        inputs: Tensor,
        targets: Tensor,
        *,
        bounds: Tensor,
        present: Tensor | None,
    ) -> Tensors:
        """The clipped sum of each job and cell.

        Bounds are (jobs, cells), inputs (jobs, examples, ...).
        """

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """Numbers (jobs, cells), shaped to multiply such weights."""

    def shaped(self, draws: Tensor) -> Tensor:
        """One value (jobs, ...) for all cells, shaped to be added to such weights."""

    def finite(self, weights: Tensors) -> Tensor:
        """Which of (jobs, cells) have finite weights."""

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """What each answers to the same inputs: (jobs, cells, examples, outputs)."""


def cells_for(bench: Workbench, count: int) -> Cells:
    """The layout that suits the model and its loss."""
    layers = [layer for layer in bench.model.modules() if list(layer.parameters(recurse=False))]
    single = len(layers) == 1 and type(layers[0]) is nn.Linear
    known = isinstance(bench.loss, CrossEntropy | SquaredError)
    return LinearCells(bench, count) if single and known else ChainCells(bench, count)


class LinearCells:
    """Logistic or linear regression: weight (jobs, I, O, cells), bias (jobs, O, cells)."""

    def __init__(self, bench: Workbench, count: int) -> None:
        self._count = count
        self._loss = bench.loss
        self._weight = next(name for name, v in bench.parameters.items() if v.ndim == 2)
        self._bias = next((name for name, v in bench.parameters.items() if v.ndim == 1), None)

    def start(self, states: list[Tensors]) -> Tensors:
        stacked = {name: torch.stack([one[name] for one in states]) for name in states[0]}
        return {
            name: self.shaped(value).expand(*[-1] * value.ndim, self._count).contiguous()
            for name, value in stacked.items()
        }

    def _answers(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """(jobs, examples, outputs, cells) of inputs (jobs, examples, I)."""
        weight = weights[self._weight]
        made = torch.bmm(inputs, weight.flatten(2)).unflatten(2, weight.shape[2:])
        return made if self._bias is None else made.add_(weights[self._bias].unsqueeze(1))

    def sums(
        self,
        weights: Tensors,
        inputs: Tensor,
        targets: Tensor,
        *,
        bounds: Tensor,
        present: Tensor | None,
    ) -> Tensors:
        flat = inputs.flatten(2)
        back = self._back(self._answers(weights, flat), targets)
        # The norm reads the records once; squares of all of them would be written, too.
        lengths = torch.linalg.vector_norm(flat, dim=2).square() + (self._bias is not None)
        squares = back.square().sum(2).mul_(lengths.unsqueeze(2))
        factors = clip_factors(squares.sqrt_(), shrink_bound(bounds, flat.shape[1]).unsqueeze(1))
        if present is not None:
            factors *= present.unsqueeze(2)
        zero_nonfinite_(back.mul_(factors.unsqueeze(2)))
        shape = weights[self._weight].shape[2:]
        # Records on the right: their columns lie far apart in memory.
        found = {self._weight: torch.bmm(back.flatten(2).mT, flat).mT.unflatten(2, shape)}
        if self._bias is not None:
            found[self._bias] = back.sum(1)
        return found

    def _back(self, answers: Tensor, targets: Tensor) -> Tensor:
        """∂ loss / ∂ answers."""
        if not isinstance(self._loss, CrossEntropy):
            return answers - targets.unsqueeze(-1)
        chances = torch.softmax(answers, 2)
        right = nn.functional.one_hot(targets, answers.shape[2]).to(chances)
        return chances.sub_(right.unsqueeze(-1))

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(len(values), *[1] * (like.ndim - 2), -1)

    def shaped(self, draws: Tensor) -> Tensor:
        return (draws.mT if draws.ndim == 3 else draws).unsqueeze(-1)

    def finite(self, weights: Tensors) -> Tensor:
        checks = [torch.isfinite(value).flatten(1, -2).all(1) for value in weights.values()]
        return torch.stack(checks).all(0)

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        jobs = len(weights[self._weight])
        flat = inputs.flatten(1).expand(jobs, -1, -1)
        return self._answers(weights, flat).permute(0, 3, 1, 2)


class ChainCells:
    """Any chain: weights (jobs, cells, ...)."""

    def __init__(self, bench: Workbench, count: int) -> None:
        self._count = count
        self._gradient = StackedGradient(bench.model, bench.loss, adjacency=bench.plan.adjacency)

    def start(self, states: list[Tensors]) -> Tensors:
        stacked = {name: torch.stack([one[name] for one in states]) for name in states[0]}
        return {
            name: self.shaped(value).expand(-1, self._count, *value.shape[1:]).contiguous()
            for name, value in stacked.items()
        }

    def _everyone(self, values: Tensor) -> Tensor:
        """(jobs, ...) as (jobs · cells, ...)."""
        return values.unsqueeze(1).expand(-1, self._count, *values.shape[1:]).flatten(0, 1)

    def sums(
        self,
        weights: Tensors,
        inputs: Tensor,
        targets: Tensor,
        *,
        bounds: Tensor,
        present: Tensor | None,
    ) -> Tensors:
        found = self._gradient(
            {name: value.flatten(0, 1) for name, value in weights.items()},
            self._everyone(inputs),
            self._everyone(targets),
            clipping_bounds=bounds.flatten().numpy(),
            present=None if present is None else self._everyone(present),
        ).values
        return {name: value.unflatten(0, (-1, self._count)) for name, value in found.items()}

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(*values.shape, *[1] * (like.ndim - 2))

    def shaped(self, draws: Tensor) -> Tensor:
        return draws.unsqueeze(1)

    def finite(self, weights: Tensors) -> Tensor:
        return torch.stack([torch.isfinite(v).flatten(2).all(2) for v in weights.values()]).all(0)

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        models = {name: value.flatten(0, 1) for name, value in weights.items()}
        count = len(next(iter(models.values())))
        found = self._gradient.outputs(models, inputs.expand(count, *inputs.shape))
        return found.unflatten(0, (-1, self._count))
