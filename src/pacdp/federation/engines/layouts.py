"""Memory layouts for the weights of many models, and the arithmetic on them.

A *job* is one participation of one client. A job may have several *cells* that differ only in
clipping bound and noise, as in the grid of the offline phase; in a federation it has one. All cells
of a job use the same records, so its inputs are one tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pacdp.clipping import CrossEntropy, StackedGradient, StackedGrid, StackedLevels, StackedSum
from pacdp.clipping.numerics import clip_factors, shrink_bound, zero_nonfinite_
from pacdp.clipping.stacked import tabulate_limits
from pacdp.federation.batches import PaddedBatch
from pacdp.federation.local_model import LocalModel, Tensors
from pacdp.validation import FloatArray


class Layout(ABC):
    """A layout of the weights of jobs × cells. Tensors called ``values`` are (jobs, cells)."""

    # Which dimensions of flat sums hold the cells and the coordinates of a model.
    cell_dim: int
    coordinate_dim: int

    def __init__(self, local_model: LocalModel, cells: int) -> None:
        self.cells = cells
        self._shapes = {name: value.shape for name, value in local_model.parameters.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]

    def release(self, sums: StackedSum, noise: Tensor, grid: StackedGrid) -> Tensors:
        """Add noise (jobs, coordinates) to the sums of the first jobs, and divide.

        With one cell the noise consists of whole numbers of grid steps. With several it is standard
        normal, and each cell scales and rounds the same draws.
        """
        noise = self._order(noise).unsqueeze(self.cell_dim)
        if self.cells > 1:
            scales = torch.from_numpy(grid.scales[: len(noise)]).float()
            noise = (noise * scales.unsqueeze(self.coordinate_dim)).round_()
        released = grid.add_noise(
            self._flatten(sums.values),
            noise,
            sums=sums,
            dim=self.coordinate_dim,
        )
        return self._unflatten(released)

    def _order(self, noise: Tensor) -> Tensor:
        """Return noise (jobs, coordinates) in the order of coordinates in flat sums."""
        return noise

    @abstractmethod
    def _flatten(self, sums: Tensors) -> Tensor:
        """Join the sums of all parameters."""

    @abstractmethod
    def _unflatten(self, flat: Tensor) -> Tensors:
        """Split flat sums into the layout of the weights."""

    @abstractmethod
    def expand(self, states: Sequence[Tensors]) -> Tensors:
        """Return the weights of several jobs from one state for each, equal in every cell."""

    @abstractmethod
    def sums(
        self,
        weights: Tensors,
        batch: PaddedBatch,
        *,
        bounds: FloatArray,
        ratios: FloatArray | None = None,
    ) -> StackedSum:
        """Compute the clipped sum of each job and cell over a batch (jobs, examples, ...).

        ``bounds`` are (jobs, cells). Where records have budget levels, ``ratios`` (jobs, cells,
        levels) are C_j/C.
        """

    @abstractmethod
    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """Reshape values so that they can be multiplied with weights."""

    @abstractmethod
    def finite(self, weights: Tensors) -> Tensor:
        """Return which of (jobs, cells) have finite weights."""

    @abstractmethod
    def outputs(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Compute the outputs for the same inputs: (jobs, cells, examples, outputs)."""


class CellsFirst(Layout):
    """Any sequential model: weights (jobs, cells, ...)."""

    cell_dim, coordinate_dim = 1, 2

    def __init__(self, local_model: LocalModel, cells: int) -> None:
        super().__init__(local_model, cells)
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
        batch: PaddedBatch,
        *,
        bounds: FloatArray,
        ratios: FloatArray | None = None,
    ) -> StackedSum:
        levels = None
        if ratios is not None and batch.levels is not None:
            models = ratios.reshape(-1, ratios.shape[2])
            levels = StackedLevels(models, self._repeat(batch.levels))
        return self._gradient(
            {name: value.flatten(0, 1) for name, value in weights.items()},
            self._repeat(batch.inputs),
            self._repeat(batch.targets),
            clipping_bounds=bounds.reshape(-1),
            present=None if batch.present is None else self._repeat(batch.present),
            levels=levels,
        )

    def _flatten(self, sums: Tensors) -> Tensor:
        flat = torch.cat([value.flatten(1) for value in sums.values()], 1)
        return flat.unflatten(0, (-1, self.cells))

    def _unflatten(self, flat: Tensor) -> Tensors:
        parts = flat.split_with_sizes(self._sizes, 2)
        return {
            name: part.unflatten(2, shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
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


class CellsLast(Layout):
    """Logistic or linear regression on public records: weight (jobs, I, O, cells).

    A step of all cells is two matrix products and takes well under a microsecond per cell. Sums are
    in plain single precision, without the error bounds that private records require.
    """

    cell_dim, coordinate_dim = 2, 1

    def __init__(self, local_model: LocalModel, cells: int) -> None:
        super().__init__(local_model, cells)
        self._loss = local_model.loss
        self._adjacency = local_model.plan.adjacency
        self._weight = next(name for name, shape in self._shapes.items() if len(shape) == 2)
        self._bias = next((name for name, shape in self._shapes.items() if len(shape) == 1), None)
        # Weights are transposed here, so noise is put in the same order.
        order = torch.arange(sum(self._sizes)).split_with_sizes(self._sizes)
        self._coordinates = torch.cat(
            [
                part.view(shape).mT.flatten() if len(shape) == 2 else part
                for part, shape in zip(order, self._shapes.values(), strict=True)
            ]
        )

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
        batch: PaddedBatch,
        *,
        bounds: FloatArray,
        ratios: FloatArray | None = None,
    ) -> StackedSum:
        flat = batch.inputs.flatten(2)
        back = self._output_gradients(self._outputs(weights, flat), batch.targets)
        # A norm only reads the records; squaring them would write as much again.
        lengths = torch.linalg.vector_norm(flat, dim=2).square() + (self._bias is not None)
        squares = back.square().sum(2).mul_(lengths.unsqueeze(2))
        limits = self._limits(bounds, ratios, batch).to(squares)
        factors = clip_factors(squares.sqrt_(), limits)
        if batch.present is not None:
            factors *= batch.present.unsqueeze(2)
        zero_nonfinite_(back.mul_(factors.unsqueeze(2)))
        shape = weights[self._weight].shape[2:]
        # Records on the right, because their columns are far apart in memory.
        sums = {self._weight: torch.bmm(back.flatten(2).mT, flat).mT.unflatten(2, shape)}
        if self._bias is not None:
            sums[self._bias] = back.sum(1)
        return StackedSum(values=sums, bounds=bounds, adjacency=self._adjacency, levels=ratios)

    def _limits(self, bounds: FloatArray, ratios: FloatArray | None, batch: PaddedBatch) -> Tensor:
        """Return the norms to clip to, which broadcast to (jobs, examples, cells)."""
        examples = batch.inputs.shape[1]
        if ratios is None or batch.levels is None:
            return shrink_bound(torch.from_numpy(bounds), examples).unsqueeze(1)
        table = tabulate_limits(bounds, ratios, examples).mT
        return table.gather(1, batch.levels.unsqueeze(2).expand(-1, -1, self.cells))

    def _output_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not isinstance(self._loss, CrossEntropy):
            return outputs - targets.unsqueeze(-1)
        probabilities = torch.softmax(outputs, 2)
        one_hot = nn.functional.one_hot(targets, outputs.shape[2]).to(probabilities)
        return probabilities.sub_(one_hot.unsqueeze(-1))

    def _order(self, noise: Tensor) -> Tensor:
        return noise[:, self._coordinates]

    def _flatten(self, sums: Tensors) -> Tensor:
        weight = sums[self._weight]
        flat = weight.new_empty(len(weight), sum(self._sizes), self.cells)
        for name, part in self._unflatten(flat).items():
            part.copy_(sums[name])
        return flat

    def _unflatten(self, flat: Tensor) -> Tensors:
        parts = flat.split_with_sizes(self._sizes, 1)
        return {
            name: part.unflatten(1, shape[::-1])
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

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
