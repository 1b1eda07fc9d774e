"""Many models in one tensor program: clients and grid cells, each with its own weights,
examples, thresholds and noise.

For models that are chains (logistic regression, MLP, small CNN). The results are those of the same
models one by one, to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from pacdp.clipping.bounded import ClippedSum, Tensors, noise_scale
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.gradient import refuse_reduced_precision
from pacdp.clipping.noise import NoiseSource
from pacdp.clipping.numerics import (
    add_on_grid,
    check_clipping_bound,
    check_noise,
    clip_factors,
    grid_step,
    shrink_bound,
)
from pacdp.clipping.sequential import Parameters, as_chain
from pacdp.errors import InputError
from pacdp.privacy import Adjacency
from pacdp.validation import FloatArray, positive


@dataclass(frozen=True, kw_only=True)
class StackedSum:
    """Clipped sums of several models: values (models, ...), each with its own bound."""

    values: Tensors
    bounds: FloatArray
    adjacency: Adjacency

    @property
    def sensitivities(self) -> FloatArray:
        """How far one record can move each model's sum, as rounded to the grid."""
        return self.bounds * self.adjacency.sensitivity

    @property
    def coordinates(self) -> int:
        """The number of coordinates of one model's sum."""
        return sum(value[0].numel() for value in self.values.values())

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, model: int) -> ClippedSum:
        """One model's sum, which carries its own sensitivity."""
        bound = float(self.bounds[model])
        return ClippedSum(
            values={name: value[model] for name, value in self.values.items()},
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
        )


class StackedGradient:
    """Clipped sums of many models of one architecture at once.

    >>> from pacdp.clipping.losses import CrossEntropy
    >>> stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    >>> parameters = stacked.parameters(models=5)
    >>> inputs, targets = torch.randn(5, 8, 3), torch.zeros(5, 8, dtype=torch.long)
    >>> sums = stacked(parameters, inputs, targets, clipping_bounds=[0.1, 0.2, 0.5, 1.0, 2.0])
    >>> sums.values["weight"].shape, sums[3].sensitivity
    (torch.Size([5, 2, 3]), 1.0)
    """

    def __init__(self, module: nn.Module, loss: Any, *, adjacency: Adjacency | str) -> None:
        chain = as_chain(module)
        if chain is None:
            raise InputError(
                "module: cannot be stacked; must be a Linear, or a Sequential of Linear, Conv2d, "
                "ReLU, Tanh, MaxPool2d and Flatten, all trainable float32"
            )
        self.module = module
        self.chain = chain
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)

    def parameters(self, *, models: int) -> dict[str, Tensor]:
        """The module's parameters, repeated for each model, to be trained apart."""
        return {
            name: parameter.detach().repeat(models, *[1] * parameter.ndim)
            for name, parameter in self.module.named_parameters()
        }

    def outputs(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """What each model answers to its own examples: (models, examples, ...)."""
        with torch.no_grad():
            return self.chain.outputs(parameters, inputs, lead=2)

    def __call__(
        self,
        parameters: Parameters,
        inputs: Tensor,
        targets: Tensor,
        *,
        clipping_bounds: ArrayLike,
        present: Tensor | None = None,
    ) -> StackedSum:
        """The clipped sum of each model over its own examples.

        ``present`` (models, examples) marks real examples where batches are unequal and padded.
        """
        bounds = _for_each("clipping_bounds", clipping_bounds, len(inputs))
        for bound in {float(bounds.min()), float(bounds.max())} if len(bounds) else ():
            check_clipping_bound("clipping_bounds", bound)
        refuse_reduced_precision()
        if not self.chain.fits(inputs.ndim - 2):
            raise InputError(
                f"inputs: has shape {tuple(inputs.shape)}, must be (models, examples, ...) with "
                "examples as the first layer takes them"
            )
        if present is not None and (
            present.dtype != torch.bool or present.shape != inputs.shape[:2]
        ):
            raise InputError(
                f"present: is {present.dtype} of shape {tuple(present.shape)}, must be bool of "
                f"shape {tuple(inputs.shape[:2])}"
            )
        most = shrink_bound(torch.from_numpy(bounds), inputs.shape[1])

        def compute() -> Tensors:
            with torch.no_grad():
                lengths, sums = self.chain.gradients(parameters, inputs, targets, self.loss, lead=2)
                factors = clip_factors(lengths, most.to(lengths).unsqueeze(1))
                found = sums(factors if present is None else factors * present)
                return {name: found[name] for name in parameters}

        values = run_flushed(compute)
        return StackedSum(values=values, bounds=bounds, adjacency=self.adjacency)


def _for_each(name: str, value: ArrayLike, models: int) -> FloatArray:
    """A positive number for each model, from one for all or from as many."""
    array = positive(name, value)
    if array.shape not in ((), (models,)):
        raise InputError(f"{name}: has shape {array.shape}, must be one or {models} numbers")
    return np.array(np.broadcast_to(array, (models,)))


def release_stacked(
    sums: StackedSum, *, z: ArrayLike, divisors: ArrayLike, noise: Sequence[NoiseSource]
) -> dict[str, Tensor]:
    """Each model's release with its own noise, as :func:`~pacdp.clipping.release` makes it.

    >>> from pacdp.clipping import SimulatedNoise
    >>> from pacdp.clipping.losses import CrossEntropy
    >>> stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    >>> inputs, targets = torch.randn(2, 8, 3), torch.zeros(2, 8, dtype=torch.long)
    >>> sums = stacked(stacked.parameters(models=2), inputs, targets, clipping_bounds=1.0)
    >>> noise = [SimulatedNoise(seed=0, client=c, round=0) for c in range(2)]
    >>> release_stacked(sums, z=[1.0, 5.0], divisors=8, noise=noise)["bias"].shape
    torch.Size([2, 2])
    """
    models = len(sums)
    if not sums.values:
        raise InputError("sums: are used up, they have been released before")
    if len(noise) != models:
        raise InputError(f"noise: has {len(noise)} sources, must have one for each of {models}")
    grid = StackedGrid(sums.sensitivities, sums.coordinates, z=_for_each("z", z, models))
    drawn = [
        source.integers(sums.coordinates, scale)
        for source, scale in zip(noise, grid.scales, strict=True)
    ]
    return grid.release(sums, torch.stack(drawn), divisors=_for_each("divisors", divisors, models))


class StackedGrid:
    """The public grids of several models, and the scales of their noise in grid steps."""

    def __init__(self, sensitivities: FloatArray, coordinates: int, *, z: FloatArray) -> None:
        check_noise(float(z.max()), coordinates)
        self._steps = grid_step(sensitivities, coordinates)
        rows = zip(z.tolist(), sensitivities.tolist(), self._steps.tolist(), strict=True)
        self.scales = [noise_scale(*row) for row in rows]

    def release(self, sums: StackedSum, noise: Tensor, *, divisors: FloatArray) -> Tensors:
        """Release the sums of the first models, with noise (models, coordinates) in grid steps."""
        shapes = {name: value.shape for name, value in sums.values.items()}
        flat = torch.cat([sums.values.pop(name).flatten(1) for name in shapes], 1)
        steps, shares = (
            torch.from_numpy(column[: flat.shape[0], None]).to(flat.device)
            for column in (self._steps, divisors)
        )
        parts = add_on_grid(flat, noise, step=steps, divisor=shares)
        sizes = [shape[1:].numel() for shape in shapes.values()]
        split = zip(shapes.items(), torch.split_with_sizes(parts, sizes, 1), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in split}
