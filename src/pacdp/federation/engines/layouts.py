"""Memory layouts for the weights of many models, and the arithmetic on them.

A *job* is one participation of one client. A job may have several *cells* that differ only in
clipping bound and noise, as in the grid of the offline phase; in a federation it has one. All cells
of a job use the same records, so its inputs are one tensor.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from pacdp.clipping import CrossEntropy, StackedGradient
from pacdp.clipping.numerics import add_on_grid, clip_factors, shrink_bound, zero_nonfinite_
from pacdp.federation.local_model import LocalModel, Tensors


class Layout(Protocol):
    """A layout of the weights of jobs × cells. Tensors called ``values`` are (jobs, cells)."""

    cells: int

    def expand(self, states: Sequence[Tensors]) -> Tensors:
        """Return the weights of several jobs from one state for each, equal in every cell."""

    def sums(
        self,
        weights: Tensors,
        inputs: Tensor,
        targets: Tensor,
        *,
        bounds: Tensor,
        present: Tensor | None,
    ) -> Tensors:
        """Compute the clipped sum of each job and cell over inputs (jobs, examples, ...).

        ``present`` (jobs, examples) marks the real examples where batches are padded.
        """

    def release(
        self, sums: Tensors, noise: Tensor, *, scales: Tensor, steps: Tensor, divisors: Tensor
    ) -> Tensors:
        """Add noise (jobs, coordinates) on the grids of these steps, and divide.

        With one cell the noise consists of whole numbers of grid steps. With several it is standard
        normal, and each cell scales and rounds the same draws.
        """

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """Reshape values so that they can be multiplied with weights."""

    def finite(self, weights: Tensors) -> Tensor:
        """Return which of (jobs, cells) have finite weights."""

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Compute the outputs for the same inputs: (jobs, cells, examples, outputs)."""


class CellsFirst:
    """Any sequential model: weights (jobs, cells, ...)."""

    def __init__(self, local_model: LocalModel, cells: int) -> None:
        self.cells = cells
        self._gradient = StackedGradient(
            local_model.model, local_model.loss, adjacency=local_model.plan.adjacency
        )

    def expand(self, states: Sequence[Tensors]) -> Tensors:
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {
            name: value.unsqueeze(1).expand(-1, self.cells, *value.shape[1:]).contiguous()
            for name, value in stacked.items()
        }

    def _repeat(self, values: Tensor) -> Tensor:
        """(jobs, ...) as (jobs · cells, ...)."""
        return values.unsqueeze(1).expand(-1, self.cells, *values.shape[1:]).flatten(0, 1)

    def sums(
        self,
        weights: Tensors,
        inputs: Tensor,
        targets: Tensor,
        *,
        bounds: Tensor,
        present: Tensor | None,
    ) -> Tensors:
        return self._gradient(
            {name: value.flatten(0, 1) for name, value in weights.items()},
            self._repeat(inputs),
            self._repeat(targets),
            clipping_bounds=bounds.flatten().numpy(),
            present=None if present is None else self._repeat(present),
        ).values

    def release(
        self, sums: Tensors, noise: Tensor, *, scales: Tensor, steps: Tensor, divisors: Tensor
    ) -> Tensors:
        shapes = {name: value.shape[1:] for name, value in sums.items()}
        flat = torch.cat([value.flatten(1) for value in sums.values()], 1)
        if self.cells > 1:
            noise = (noise.unsqueeze(1) * scales.float().unsqueeze(2)).round_().flatten(0, 1)
        steps, divisors = (v.reshape(-1, 1).to(flat.device) for v in (steps, divisors))
        parts = add_on_grid(flat, noise, step=steps, divisor=divisors).split_with_sizes(
            [shape.numel() for shape in shapes.values()], 1
        )
        return {
            name: part.reshape(-1, self.cells, *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(*values.shape, *[1] * (like.ndim - 2))

    def finite(self, weights: Tensors) -> Tensor:
        return torch.stack([torch.isfinite(v).flatten(2).all(2) for v in weights.values()]).all(0)

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        models = {name: value.flatten(0, 1) for name, value in weights.items()}
        count = len(next(iter(models.values())))
        outputs = self._gradient.outputs(models, inputs.expand(count, *inputs.shape))
        return outputs.unflatten(0, (-1, self.cells))


class CellsLast:
    """Logistic or linear regression on public records: weight (jobs, I, O, cells).

    A step of all cells is two matrix products and takes well under a microsecond per cell. Sums are
    in plain single precision, without the error bounds that private records require.
    """

    def __init__(self, local_model: LocalModel, cells: int) -> None:
        self.cells = cells
        self._loss = local_model.loss
        self._shapes = {name: value.shape for name, value in local_model.parameters.items()}
        self._weight = next(name for name, shape in self._shapes.items() if len(shape) == 2)
        self._bias = next((name for name, shape in self._shapes.items() if len(shape) == 1), None)

    def expand(self, states: Sequence[Tensors]) -> Tensors:
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {
            name: _lay_out(value).expand(*[-1] * value.ndim, self.cells).contiguous()
            for name, value in stacked.items()
        }

    def _outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """(jobs, examples, outputs, cells) of inputs (jobs, examples, I)."""
        weight = weights[self._weight]
        outputs = torch.bmm(inputs, weight.flatten(2)).unflatten(2, weight.shape[2:])
        return outputs if self._bias is None else outputs.add_(weights[self._bias].unsqueeze(1))

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
        back = self._output_gradients(self._outputs(weights, flat), targets)
        # A norm only reads the records; squaring them would write as much again.
        lengths = torch.linalg.vector_norm(flat, dim=2).square() + (self._bias is not None)
        squares = back.square().sum(2).mul_(lengths.unsqueeze(2))
        limits = shrink_bound(bounds, flat.shape[1]).to(squares).unsqueeze(1)
        factors = clip_factors(squares.sqrt_(), limits)
        if present is not None:
            factors *= present.unsqueeze(2)
        zero_nonfinite_(back.mul_(factors.unsqueeze(2)))
        shape = weights[self._weight].shape[2:]
        # Records on the right, because their columns are far apart in memory.
        sums = {self._weight: torch.bmm(back.flatten(2).mT, flat).mT.unflatten(2, shape)}
        if self._bias is not None:
            sums[self._bias] = back.sum(1)
        return sums

    def _output_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not isinstance(self._loss, CrossEntropy):
            return outputs - targets.unsqueeze(-1)
        probabilities = torch.softmax(outputs, 2)
        one_hot = nn.functional.one_hot(targets, outputs.shape[2]).to(probabilities)
        return probabilities.sub_(one_hot.unsqueeze(-1))

    def release(
        self, sums: Tensors, noise: Tensor, *, scales: Tensor, steps: Tensor, divisors: Tensor
    ) -> Tensors:
        parts = noise.split([shape.numel() for shape in self._shapes.values()], 1)
        released = {}
        for (name, shape), part in zip(self._shapes.items(), parts, strict=True):
            clean, drawn = sums[name], _lay_out(part.reshape(-1, *shape))
            if self.cells > 1:
                drawn = (drawn * self.spread(scales.float(), clean)).round_()
            released[name] = add_on_grid(
                clean,
                drawn,
                step=self.spread(steps.float(), clean),
                divisor=self.spread(divisors.float(), clean),
            )
        return released

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        return values.view(len(values), *[1] * (like.ndim - 2), -1)

    def finite(self, weights: Tensors) -> Tensor:
        checks = [torch.isfinite(value).flatten(1, -2).all(1) for value in weights.values()]
        return torch.stack(checks).all(0)

    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        jobs = len(weights[self._weight])
        flat = inputs.flatten(1).expand(jobs, -1, -1)
        return self._outputs(weights, flat).permute(0, 3, 1, 2)


def _lay_out(values: Tensor) -> Tensor:
    """Return a value (jobs, ...) as :class:`CellsLast` lays it out, equal in all cells."""
    return (values.mT if values.ndim == 3 else values).unsqueeze(-1)
